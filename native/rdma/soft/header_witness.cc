// The raw socket, its filter, and the search for a message's header.
#include "rdma/soft/header_witness.h"

#include <linux/filter.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/socket_setup.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr unsigned kIdAt = 4, kFlagsAt = 6, kSourceAt = 12, kSourcePortAt = 20, kUdpLengthAt = 24;
constexpr unsigned kDestPortAt = 22, kBthAt = 28, kQpnAt = kBthAt + 5;

// Offset 0 is the IP header. RoCEv2 goes without IP options; member 0 takes what no reactor owns,
// as the steering program does. Reactors are 64 at most: 64 matches none.
bool attach_filter(int fd, const HeaderWitnessOptions& options, unsigned seen_bytes) {
  const uint32_t last = options.index == 0 ? options.reactors : reactor::kReactorsMax;
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 7),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kDestPortAt),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kUdpPort, 0, 5),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kQpnAt),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, kQpnReactorShift - 16),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, options.index, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, last, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, seen_bytes),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  sock_fprog program{};
  program.len = std::size(code);
  program.filter = code;
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

template <typename Bytes>
bool same_source(const Bytes& a, const Bytes& b) {
  return std::memcmp(&a[kSourceAt], &b[kSourceAt], 4) == 0 &&
         std::memcmp(&a[kSourcePortAt], &b[kSourcePortAt], 2) == 0;
}

}  // namespace

HeaderWitness::HeaderWitness(int fd, bool restarts) : fd_(fd), restarts_(restarts) {
  for (unsigned i = 0; i < kBatch; i++) {
    vectors_[i] = {incoming_[i].data(), kSeenBytes};
    messages_[i].msg_hdr.msg_iov = &vectors_[i];
    messages_[i].msg_hdr.msg_iovlen = 1;
  }
}

HeaderWitness::~HeaderWitness() {
  close(fd_);
}

Result<std::unique_ptr<HeaderWitness>> HeaderWitness::open(const HeaderWitnessOptions& options) {
  const int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);
  if (fd < 0 && (errno == EPERM || errno == EACCES))
    return Error{EPERM,
                 "The full ICRC check of IPv4 needs the capability CAP_NET_RAW, to see IP headers: "
                 "run as root, or `sudo setcap cap_net_raw+ep \"$(readlink -f \"$(command -v "
                 "node)\")\"`, or choose the ICRC check `recovered`."};
  const auto fail = [&](const char* what) {
    const int code = errno;
    if (fd >= 0) close(fd);
    return Error{code, std::string(what) + " on " + to_string(options.address) +
                           " failed: " + std::strerror(code) + "."};
  };
  if (fd < 0) return fail("Opening a raw socket");
  // The filter first, so that nothing else is ever queued.
  if (!attach_filter(fd, options, kSeenBytes)) return fail("Filtering a raw socket");
  const sockaddr_storage local = with_port(options.address, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&local), address_length(local)) != 0)
    return fail("Binding a raw socket");
  request_receive_buffer(fd, options.buffer_bytes);
  // Since then GRO merges only datagrams whose identifications are equal or count up.
  const bool restarts = !kernel_at_least(6, 10);
  return std::unique_ptr<HeaderWitness>(new HeaderWitness(fd, restarts));
}

bool HeaderWitness::find(const sockaddr_storage& source, const uint8_t* bytes, uint32_t length,
                         SeenHeader* header) {
  if (length < kBthBytes) return false;
  // After a rest everything that waits is read, so that headers of lost messages show as such.
  if (tail_ == head_)
    while (head_ - tail_ <= kKept - kBatch && fill() == static_cast<int>(kBatch)) {
    }
  while (!take(source, bytes, length, header)) {
    if (head_ - tail_ > kKept - kBatch) {
      tail_ += kBatch;  // full of headers whose messages do not come: the oldest are forgotten
      return false;
    }
    if (fill() <= 0) return false;
  }
  return true;
}

int HeaderWitness::fill() {
  const int count = recvmmsg(fd_, messages_.data(), kBatch, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < count; i++) {
    if (messages_[static_cast<size_t>(i)].msg_len != kSeenBytes) continue;
    kept_[head_ % kKept] = incoming_[static_cast<size_t>(i)];
    taken_[head_ % kKept] = false;
    head_++;
  }
  return count;
}

// Mostly the oldest; not always, because the two sockets fill from several CPUs. A header whose
// message was lost on the way to the receive socket looks like that of the same packet sent again:
// then the oldest and the newest are both given, and both are used up.
bool HeaderWitness::take(const sockaddr_storage& source, const uint8_t* bytes, uint32_t length,
                         SeenHeader* header) {
  Seen wanted{};
  std::memcpy(&wanted[kSourceAt], &reinterpret_cast<const sockaddr_in&>(source).sin_addr, 4);
  put16(&wanted[kSourcePortAt], port_of(source));
  put16(&wanted[kUdpLengthAt], static_cast<uint16_t>(length + kUdpBytes));
  std::memcpy(&wanted[kBthAt], bytes, kBthBytes);
  uint32_t oldest = head_;
  for (uint32_t i = tail_; i != head_; i++) {
    const Seen& seen = kept_[i % kKept];
    if (taken_[i % kKept] || !same_source(seen, wanted) ||
        std::memcmp(&seen[kUdpLengthAt], &wanted[kUdpLengthAt], 2) != 0 ||
        std::memcmp(&seen[kBthAt], &wanted[kBthAt], kBthBytes) != 0)
      continue;
    header->other_identification = get16(&seen[kIdAt]);
    header->other_flags = get16(&seen[kFlagsAt]);
    taken_[i % kKept] = true;
    if (oldest != head_) continue;
    oldest = i;
    header->of = SeenHeader::Of::ThisPacket;
    header->restarts = restarts_;
    header->identification = header->other_identification;
    header->flags = header->other_flags;
  }
  if (oldest == head_) return false;
  // Packets of one source come in order: what was before this one has been lost.
  for (uint32_t i = tail_; i != oldest; i++)
    if (same_source(kept_[i % kKept], wanted)) taken_[i % kKept] = true;
  while (tail_ != head_ && taken_[tail_ % kKept]) tail_++;
  return true;
}

}  // namespace nvmeof::rdma::soft
