#include "rdma/soft/steering.h"

#include <linux/filter.h>
#include <unistd.h>

#include <cstring>

#include "rdma/soft/packet.h"
#include "rdma/soft/socket_setup.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

// Offset 0 is the UDP payload, so BTH byte 5 holds the top byte of the QPN. QPNs of reactors that
// do not exist, QP1 among them, go to member 0; so do packets too short to have the byte (a failed
// load returns 0).
bool attach_program(int fd, unsigned members) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 5),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, kQpnReactorShift - 16),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, members, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  sock_fprog program{};
  program.len = sizeof code / sizeof code[0];
  program.filter = code;
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
}

}  // namespace

Result<std::vector<int>> open_receive_group(const sockaddr_storage& address, unsigned members) {
  std::vector<int> sockets;
  const auto fail = [&](Error error) {
    for (const int fd : sockets) close(fd);
    return error;
  };
  for (unsigned i = 0; i < members; i++) {
    auto socket = open_receive_socket(address, i > 0);
    if (!socket) return fail(socket.error());
    sockets.push_back(*socket);
    // Joining late: the next member's bind() makes the group with this one as its first.
    if (i == 0 && members > 1 && !set_option(*socket, SOL_SOCKET, SO_REUSEPORT, 1))
      return fail(Error{errno, std::string("SO_REUSEPORT after bind failed: ") +
                                   std::strerror(errno) + "; use one reactor."});
  }
  if (members > 1 && !attach_program(sockets.back(), members))
    return fail(Error{errno, std::string("The kernel refuses the program that steers packets to "
                                         "reactors: ") +
                                 std::strerror(errno) + "; use one reactor."});
  return sockets;
}

}  // namespace nvmeof::rdma::soft
