// The client's half of an NBD conversation, as bytes on a socket: what tests send and look for.
#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "attach/nbd/protocol.h"

namespace nvmeof::test {

using Bytes = std::vector<uint8_t>;

inline void add16(Bytes& to, uint16_t value) {
  to.resize(to.size() + 2);
  attach::nbd::put16(&to[to.size() - 2], value);
}
inline void add32(Bytes& to, uint32_t value) {
  to.resize(to.size() + 4);
  attach::nbd::put32(&to[to.size() - 4], value);
}
inline void add64(Bytes& to, uint64_t value) {
  to.resize(to.size() + 8);
  attach::nbd::put64(&to[to.size() - 8], value);
}
inline void add(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

inline Bytes option_bytes(uint32_t number, const Bytes& data = {},
                          uint64_t magic = attach::nbd::kOptionMagic) {
  Bytes bytes;
  add64(bytes, magic);
  add32(bytes, number);
  add32(bytes, static_cast<uint32_t>(data.size()));
  add(bytes, data);
  return bytes;
}

inline Bytes info_data(const std::string& name, const std::vector<uint16_t>& wanted) {
  Bytes data;
  add32(data, static_cast<uint32_t>(name.size()));
  data.insert(data.end(), name.begin(), name.end());
  add16(data, static_cast<uint16_t>(wanted.size()));
  for (const uint16_t each : wanted) add16(data, each);
  return data;
}

inline Bytes request_bytes(uint16_t type, uint64_t cookie, uint64_t offset, uint32_t length,
                           uint16_t flags = 0) {
  Bytes bytes;
  add32(bytes, attach::nbd::kRequestMagic);
  add16(bytes, flags);
  add16(bytes, type);
  add64(bytes, cookie);
  add64(bytes, offset);
  add32(bytes, length);
  return bytes;
}

// All that a client says up to the first request.
inline Bytes opening(bool structured) {
  Bytes bytes;
  add32(bytes, 3);
  if (structured) add(bytes, option_bytes(attach::nbd::option::kStructuredReply));
  add(bytes, option_bytes(attach::nbd::option::kGo, info_data("", {})));
  return bytes;
}
// How many bytes the answers have, the greeting too.
inline size_t opening_answers(bool structured) {
  return 18 + (structured ? 20 : 0) + 32 + 20;
}

// A client that waits for what it asked for. Of a thread beside the server's.
class NbdClient {
 public:
  explicit NbdClient(const std::string& path, bool structured = false) {
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (!connected) return;
    send(opening(structured));
    connected = receive(opening_answers(structured)).size() == opening_answers(structured);
  }
  ~NbdClient() { close(); }
  NbdClient(const NbdClient&) = delete;
  NbdClient& operator=(const NbdClient&) = delete;

  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  bool send(const Bytes& bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t sent = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  // Fewer when the server hung up.
  Bytes receive(size_t bytes) {
    Bytes got(bytes);
    size_t at = 0;
    while (at < bytes) {
      const ssize_t more = recv(fd, got.data() + at, bytes - at, 0);
      if (more <= 0) break;
      at += static_cast<size_t>(more);
    }
    got.resize(at);
    return got;
  }
  bool hung_up() { return receive(1).empty(); }

  int fd = -1;
  bool connected = false;
};

}  // namespace nvmeof::test
