// Who holds UDP port 4791 on an address: what the error of a second process says, and what
// `nvmeof doctor` reports. Reads /proc only; needs no privilege for the user's own processes, and
// root to name those of others. Any thread that may block.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nvmeof::rdma::soft {

struct PortOwner {
  std::string local;      // address the socket is bound to, as text
  bool wildcard = false;  // bound to 0.0.0.0 or ::
  uint64_t inode = 0;     // 0: no file behind it, a socket of the kernel itself
  uid_t uid = 0;          // of the socket
  pid_t pid = 0;          // 0: not found (kernel, another user's process, another container)
  std::string command;    // of pid
  bool rdma_rxe = false;  // the rdma_rxe kernel module holds it
};

// Every socket on `port` that would keep us from binding `address`: bound to it or to a wildcard.
// With address.ss_family AF_UNSPEC: every socket on the port.
std::vector<PortOwner> port_owners(const sockaddr_storage& address, uint16_t port);

bool module_loaded(const char* name);  // from /proc/modules

// The whole sentence for a person: which address, who holds it, what to do.
std::string port_in_use_message(const sockaddr_storage& address, uint16_t port);

}  // namespace nvmeof::rdma::soft
