// The TCP connection over which programs without connection management tell each other of their
// queue pairs. Blocking, with a time limit; a failure ends the program.
#pragma once
#include <netinet/in.h>

#include <string>
#include <vector>

namespace nvmeof::peer {

class Exchange {
 public:
  static Exchange serve(const sockaddr_storage& address, uint16_t port, unsigned timeout_ms);
  static Exchange dial(const sockaddr_storage& address, uint16_t port, unsigned timeout_ms);
  ~Exchange();
  Exchange(Exchange&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void write(const void* data, size_t length);
  void read(void* data, size_t length);  // all of it
  // What one write of the peer brought; empty: it closed the connection.
  std::vector<char> read_message();

 private:
  explicit Exchange(int fd) : fd_(fd) {}
  int fd_;
};

// A GID in text: 32 hexadecimal digits, as the peers' messages have it.
std::string gid_text(const sockaddr_storage& address);
sockaddr_storage address_of_gid_text(const std::string& text);

}  // namespace nvmeof::peer
