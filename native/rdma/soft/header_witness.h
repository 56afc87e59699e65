// Sees the IPv4 header of what the receive socket gets, which a UDP socket hides: a raw socket
// (CAP_NET_RAW) on the same address takes the first 40 bytes of every datagram to port 4791 -- IP
// header, UDP header, BTH -- and find() picks those of a received message. The kernel queues them
// before the message itself. Reactor's thread after open().
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <memory>

#include "rdma/soft/link.h"
#include "reactor/result.h"

namespace nvmeof::rdma::soft {

struct HeaderWitnessOptions {
  sockaddr_storage address{};  // IPv4
  unsigned index = 0;          // of the reactor: packets are chosen as steering.h does
  unsigned reactors = 1;
  uint32_t buffer_bytes = 4 << 20;
};

class HeaderWitness {
 public:
  static Result<std::unique_ptr<HeaderWitness>> open(const HeaderWitnessOptions& options);
  ~HeaderWitness();
  HeaderWitness(const HeaderWitness&) = delete;
  HeaderWitness& operator=(const HeaderWitness&) = delete;

  // The header of the message of `length` bytes (a whole merged train) from `source`. False: it
  // was lost, because the raw socket's buffer was full.
  bool find(const sockaddr_storage& source, const uint8_t* bytes, uint32_t length,
            SeenHeader* header);
  // The headers that are kept belong to messages that the receive socket lost.
  void forget() { tail_ = head_; }

 private:
  static constexpr unsigned kBatch = 16, kKept = 256, kIpBytes = 20, kUdpBytes = 8;
  static constexpr unsigned kSeenBytes = kIpBytes + kUdpBytes + 12;
  using Seen = std::array<uint8_t, kSeenBytes>;

  HeaderWitness(int fd, bool restarts);
  int fill();
  bool take(const sockaddr_storage& source, const uint8_t* bytes, uint32_t length,
            SeenHeader* header);

  int fd_;
  bool restarts_;
  // Headers whose message has not come: [tail_, head_), those already taken are marked.
  std::array<Seen, kKept> kept_;
  std::array<bool, kKept> taken_{};
  uint32_t tail_ = 0, head_ = 0;
  std::array<Seen, kBatch> incoming_;
  std::array<iovec, kBatch> vectors_;
  std::array<mmsghdr, kBatch> messages_{};
};

}  // namespace nvmeof::rdma::soft
