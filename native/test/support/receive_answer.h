// What the server of clients over shared memory says, for clients made by hand.
#pragma once
#include <sys/socket.h>

#include <cstring>

#include "client/ring_layout.h"

namespace nvmeof::test {

// One message of the server, and the descriptor that came with it. What recvmsg returns.
inline ssize_t receive_answer(int socket, int flags, nvmeof_ring_answer* answer, int* passed_fd) {
  *answer = {};
  iovec part{answer, sizeof *answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(socket, &header, flags);
  if (length > 1)
    if (const cmsghdr* const passed = CMSG_FIRSTHDR(&header))
      std::memcpy(passed_fd, CMSG_DATA(passed), sizeof *passed_fd);
  return length;
}

}  // namespace nvmeof::test
