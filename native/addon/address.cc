// Numeric addresses; see address.h.
#include "addon/address.h"

#include <netdb.h>

#include <cstring>

namespace nvmeof::addon {

Result<sockaddr_storage> parse_address(const std::string& text, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return Error{EINVAL, "'" + text + "' is not a numeric IPv4 or IPv6 address"};
  }
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

std::string format_address(const sockaddr_storage& address) {
  char text[NI_MAXHOST];
  const socklen_t length =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text, nullptr,
                  0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

}  // namespace nvmeof::addon
