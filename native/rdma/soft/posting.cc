// Posting sends: every work request is checked here, by the service of its queue pair, and copied
// into the send queue. Reactor's thread.
#include <algorithm>

#include "rdma/soft/requester.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

// Which services take a work request (IBTA table 38), by opcode.
constexpr uint8_t kRc = 1u << static_cast<unsigned>(QpType::Rc),
                  kUc = 1u << static_cast<unsigned>(QpType::Uc),
                  kUd = 1u << static_cast<unsigned>(QpType::Ud);
constexpr uint8_t kServicesOf[] = {
    kRc | kUc | kUd,  // Send
    kRc | kUc | kUd,  // SendWithImm
    kRc,              // SendWithInvalidate
    kRc | kUc,        // RdmaWrite
    kRc | kUc,        // RdmaWriteWithImm
    kRc,              // RdmaRead
    kRc | kUc,        // BindMemoryWindow
    kRc | kUc,        // LocalInvalidate
    kRc,              // AtomicFetchAdd
    kRc,              // AtomicCompareSwap
};

Error malformed(const char* what) {
  return Error{EINVAL, std::string("post_send: ") + what};
}

}  // namespace

Result<void> Requester::check(const SendWorkRequest& request, uint64_t& length) const {
  length = 0;
  if (static_cast<size_t>(request.opcode) >= std::size(kServicesOf))
    return malformed("unknown opcode");
  if ((kServicesOf[static_cast<unsigned>(request.opcode)] >> static_cast<unsigned>(qp_.type()) &
       1) == 0)
    return malformed("the queue pair's service has no such operation");
  if (request.opcode == Opcode::LocalInvalidate) return {};
  if (request.opcode == Opcode::BindMemoryWindow) {
    if (request.bind.window == nullptr || request.bind.region == nullptr)
      return malformed("bind without window or region");
    length = request.bind.length;
    return {};
  }
  if (request.num_sge > queue_.max_sge()) return malformed("more SGEs than the queue pair takes");
  if (request.num_sge != 0 && request.sg_list == nullptr) return malformed("no SGE list");
  for (unsigned i = 0; i < request.num_sge; i++) length += request.sg_list[i].length;
  if (length > kMessageBytesMax) return malformed("message longer than 2 GiB");
  if (is_atomic(request.opcode) && length != kAtomicBytes)
    return malformed("an atomic operation is of eight bytes");
  if (qp_.type() == QpType::Ud) {
    if (length > qp_.mtu()) return malformed("a datagram longer than the path MTU");
    if (request.datagram.address == nullptr || request.datagram.remote_qpn == 0 ||
        request.datagram.remote_qpn >= kMask24)
      return malformed("a datagram without address or queue pair");
  }
  if ((request.flags & kInline) != 0) {
    if (is_answered(request.opcode)) return malformed("inline RDMA READ or atomic");
    if (length > queue_.max_inline()) return malformed("more inline data than the device takes");
  }
  return {};
}

void Requester::append(const SendWorkRequest& request, uint64_t length) {
  const uint32_t index = queue_.tail;
  SendEntry& entry = queue_.at(index);
  entry = SendEntry{};
  entry.wr_id = request.wr_id;
  entry.opcode = request.opcode;
  entry.flags = request.flags;
  entry.length = length;
  entry.imm_or_rkey = request.imm_or_rkey;
  entry.remote_address = request.remote_address;
  entry.rkey = request.rkey;
  if (request.opcode == Opcode::BindMemoryWindow) {
    entry.bind = {request.bind.window, request.bind.region};
    entry.remote_address = request.bind.address;
    entry.rkey = request.bind.rkey;
    entry.access = request.bind.access;
  } else if (request.opcode != Opcode::LocalInvalidate) {
    if ((request.flags & kInline) != 0) {
      uint8_t* to = queue_.inline_data(index);
      for (unsigned i = 0; i < request.num_sge; i++) {
        const Sge& sge = request.sg_list[i];
        if (sge.length != 0)
          std::memcpy(to, reinterpret_cast<const void*>(sge.address), sge.length);
        to += sge.length;
      }
    } else {
      entry.num_sge = request.num_sge;
      std::copy_n(request.sg_list, request.num_sge, queue_.sges(index));
    }
    if (qp_.type() == QpType::Ud)
      entry.datagram = request.datagram;
    else if (is_atomic(request.opcode))
      entry.atomic = request.atomic;
    else if (request.opcode == Opcode::RdmaRead)
      entry.lease = request.lease;
  }
  queue_.tail++;
}

Result<void> Requester::post(std::span<const SendWorkRequest> requests) {
  for (const SendWorkRequest& request : requests) {
    uint64_t length;
    Result<void> checked = check(request, length);
    const auto accepted = [&] {
      return " (" + std::to_string(&request - requests.data()) + " requests were accepted)";
    };
    if (!checked) return Error{checked.error().code, checked.error().message + accepted()};
    if (queue_.full()) return Error{ENOMEM, "post_send: the send queue is full" + accepted()};
    append(request, length);
  }
  return {};
}

bool Requester::probe() {
  if (outstanding() || queue_.count() != 0) return false;
  SendEntry& entry = queue_.at(queue_.tail++);
  entry = SendEntry{};
  entry.opcode = Opcode::RdmaWrite;
  entry.internal = true;
  return true;
}

}  // namespace nvmeof::rdma::soft
