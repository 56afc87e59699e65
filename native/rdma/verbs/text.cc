#include "rdma/verbs/text.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

namespace nvmeof::rdma::verbs {

namespace {

const sockaddr_in& v4(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr_in&>(address);
}
const sockaddr_in6& v6(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr_in6&>(address);
}

std::string ip_text(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, bytes, text, sizeof text);
  return text;
}

}  // namespace

std::string text_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ip_text(AF_INET, &v4(address).sin_addr);
  if (address.ss_family == AF_INET6) return ip_text(AF_INET6, &v6(address).sin6_addr);
  return "an address of family " + std::to_string(address.ss_family);
}

std::string text_of(const ibv_gid& gid) {
  return ip_text(AF_INET6, gid.raw);
}

uint16_t port_of(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

sockaddr_storage with_port(const sockaddr_storage& address, uint16_t port) {
  sockaddr_storage out = address;
  if (out.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(out).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(out).sin6_port = htons(port);
  }
  return out;
}

sockaddr_storage unmapped(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6(address).sin6_addr))
    return address;
  sockaddr_storage out{};
  auto& plain = reinterpret_cast<sockaddr_in&>(out);
  plain.sin_family = AF_INET;
  plain.sin_port = v6(address).sin6_port;
  std::memcpy(&plain.sin_addr, v6(address).sin6_addr.s6_addr + 12, 4);
  return out;
}

sockaddr_storage storage_of(const sockaddr& address) {
  sockaddr_storage out{};
  std::memcpy(&out, &address,
              address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return out;
}

ibv_gid gid_of(const sockaddr_storage& address) {
  ibv_gid gid{};
  if (address.ss_family == AF_INET6) {
    std::memcpy(gid.raw, v6(address).sin6_addr.s6_addr, sizeof gid.raw);
  } else {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &v4(address).sin_addr, 4);
  }
  return gid;
}

bool same_gid(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof a.raw) == 0;
}

int error_of_post(int returned) {
  if (returned >= 0) return returned;
  return returned == -1 && errno != 0 ? errno : -returned;
}

std::string reason_of(int code) {
  return std::string(" (") + std::strerror(code) + ")";
}

}  // namespace nvmeof::rdma::verbs
