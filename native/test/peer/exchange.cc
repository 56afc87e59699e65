#include "peer/exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "peer/endpoint.h"
#include "rdma/soft/flow.h"

namespace nvmeof::peer {

namespace {

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

int new_socket(const sockaddr_storage& address) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("no socket");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return fd;
}

void limit(int fd, unsigned timeout_ms) {
  const timeval limit{timeout_ms / 1000, timeout_ms % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

}  // namespace

Exchange Exchange::serve(const sockaddr_storage& address, uint16_t port, unsigned timeout_ms) {
  const sockaddr_storage local = rdma::soft::with_port(address, port);
  const int fd = new_socket(local);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&local), length_of(local)) != 0 ||
      listen(fd, 1) != 0)
    die("cannot listen on TCP port " + std::to_string(port));
  std::printf("listening\n");
  std::fflush(stdout);
  pollfd ready{fd, POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(timeout_ms)) != 1) die("nobody connected");
  const int connection = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
  close(fd);
  if (connection < 0) die("accept failed");
  limit(connection, timeout_ms);
  return Exchange(connection);
}

// The other program may still be starting: try again until the time is over.
Exchange Exchange::dial(const sockaddr_storage& address, uint16_t port, unsigned timeout_ms) {
  const sockaddr_storage remote = rdma::soft::with_port(address, port);
  const reactor::TimeNs end = reactor::monotonic_now() + timeout_ms * reactor::TimeNs{1'000'000};
  for (;;) {
    const int fd = new_socket(remote);
    limit(fd, timeout_ms);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&remote), length_of(remote)) == 0)
      return Exchange(fd);
    const int error = errno;
    close(fd);
    if (error != ECONNREFUSED || reactor::monotonic_now() > end)
      die(std::string("cannot connect over TCP: ") + std::strerror(error));
    usleep(50'000);
  }
}

Exchange::~Exchange() {
  if (fd_ >= 0) close(fd_);
}

void Exchange::write(const void* data, size_t length) {
  if (send(fd_, data, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length))
    die("the peer's TCP connection took nothing");
}

void Exchange::read(void* data, size_t length) {
  if (recv(fd_, data, length, MSG_WAITALL) != static_cast<ssize_t>(length))
    die("the peer's TCP connection brought nothing");
}

std::vector<char> Exchange::read_message() {
  std::vector<char> message(4096);
  const ssize_t got = recv(fd_, message.data(), message.size(), 0);
  if (got < 0 && errno != ECONNRESET) die("the peer's TCP connection brought nothing");
  message.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return message;
}

std::string gid_text(const sockaddr_storage& address) {
  std::string text;
  for (const uint8_t byte : rdma::soft::gid_of(address)) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

sockaddr_storage address_of_gid_text(const std::string& text) {
  if (text.size() != 32) die("\"" + text + "\" is not a GID");
  rdma::soft::Gid gid{};
  for (size_t i = 0; i < gid.size(); i++)
    gid[i] = static_cast<uint8_t>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  return rdma::soft::address_of(gid);
}

}  // namespace nvmeof::peer
