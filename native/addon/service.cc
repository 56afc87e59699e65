// What a service tells its manager: one datagram to the socket that NOTIFY_SOCKET names, as
// sd_notify(3) does. JavaScript has no datagram sockets of this family.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

constexpr size_t kStateMax = 4096;

// A path, or with a leading @ a name in the abstract namespace.
Result<void> send_state(const std::string& socket_name, const std::string& state) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, socket_name.data(), socket_name.size());
  if (socket_name[0] == '@') address.sun_path[0] = '\0';
  // An abstract name has no terminator: its length is the address's.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_name.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Error{errno, "cannot make a socket: " + std::string(strerror(errno))};
  const ssize_t sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), length);
  const int error = errno;
  close(fd);
  if (sent < 0) return Error{error, socket_name + ": " + strerror(error)};
  return {};
}

}  // namespace

Napi::Value notify_service(const Arguments& arguments) {
  const Argument socket_name = arguments.at(0, "socket");
  const std::string name = socket_name.text();
  if (name.empty() || (name[0] != '/' && name[0] != '@'))
    socket_name.refuse("an absolute path, or @ and a name");
  if (name.size() >= sizeof(sockaddr_un::sun_path))
    socket_name.out_of_range("at most " + std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                             " bytes");
  const Argument state = arguments.at(1, "state");
  const std::string text = state.text();
  if (text.empty() || text.size() > kStateMax)
    state.out_of_range("1 to " + std::to_string(kStateMax) + " bytes");
  const Result<void> sent = send_state(name, text);
  if (!sent) throw_error(arguments.env(), sent.error());
  return arguments.env().Undefined();
}

}  // namespace nvmeof::addon
