// Addresses and GIDs as text and as each other, for messages and look-ups. Pure, any thread.
#pragma once
#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <string>

namespace nvmeof::rdma::verbs {

// Without port; an IPv6 zone is not shown.
std::string text_of(const sockaddr_storage& address);
std::string text_of(const ibv_gid& gid);
uint16_t port_of(const sockaddr& address);
sockaddr_storage with_port(const sockaddr_storage& address, uint16_t port);
// ::ffff:a.b.c.d becomes IPv4.
sockaddr_storage unmapped(const sockaddr_storage& address);
sockaddr_storage storage_of(const sockaddr& address);
// The GID that a RoCE v2 device has for an IP address: an IPv6 address itself, IPv4 as
// ::ffff:a.b.c.d (InfiniBand Architecture, annex A17.4.3).
ibv_gid gid_of(const sockaddr_storage& address);
bool same_gid(const ibv_gid& a, const ibv_gid& b);
// What a post returned, as errno: some providers return it negative, or -1 and set errno.
int error_of_post(int returned);
// " (errno text)".
std::string reason_of(int code);

}  // namespace nvmeof::rdma::verbs
