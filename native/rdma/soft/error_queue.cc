#include "rdma/soft/error_queue.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>

#include <cerrno>
#include <cstring>

#include "rdma/soft/opcode.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

SendFault fault_of(const sock_extended_err& error) {
  if (error.ee_errno == EMSGSIZE) return SendFault::MtuTooLarge;
  if (error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == ICMP_DEST_UNREACH)
    return error.ee_code == ICMP_PORT_UNREACH ? SendFault::PortUnreachable : SendFault::Unreachable;
  if (error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == ICMP6_DST_UNREACH)
    return error.ee_code == ICMP6_DST_UNREACH_NOPORT ? SendFault::PortUnreachable
                                                     : SendFault::Unreachable;
  return SendFault::Other;
}

}  // namespace

bool read_error_queue(int fd, ErrorReport* report) {
  uint8_t bytes[kBthBytes];
  alignas(cmsghdr) char control[256];
  *report = {};
  iovec vector{bytes, sizeof bytes};
  msghdr message{};
  message.msg_name = &report->peer;
  message.msg_namelen = sizeof report->peer;
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
  if (length < 0) return false;
  if (length >= kBthBytes) {
    report->has_bth = true;
    report->dest_qpn = get24(bytes + 5);
    report->psn = get24(bytes + 9);
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    const bool v4 = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
    const bool v6 = c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR;
    if (!v4 && !v6) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(c), sizeof error);
    report->fault = fault_of(error);
    if (report->fault == SendFault::MtuTooLarge) report->mtu = error.ee_info;
  }
  return true;
}

}  // namespace nvmeof::rdma::soft
