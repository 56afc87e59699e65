// Packets through real sockets: one receive socket (a member of the steering group) and a few send
// sockets for one reactor. Trains leave by sendmmsg with UDP_SEGMENT and arrive merged by UDP_GRO.
// What the kernel and ICMP report about sent packets is collected and handed out between batches,
// never from inside send(). Everything on the reactor's thread; counters are read from anywhere.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "rdma/soft/error_queue.h"
#include "rdma/soft/header_witness.h"
#include "rdma/soft/icrc.h"
#include "rdma/soft/link.h"
#include "rdma/soft/pcap.h"
#include "rdma/soft/socket_setup.h"

namespace nvmeof::rdma::soft {

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // `expected_id`: the packet's position in the train it arrived in (icrc.h).
  virtual void on_packet(const Arrival& arrival, uint16_t expected_id) = 0;
  // A packet of ours did not get through.
  virtual void on_fault(const ErrorReport& report) = 0;
};

struct LinkCounters {
  std::atomic<uint64_t> rx_packets, rx_bytes, rx_messages, rx_calls, rx_errors;
  std::atomic<uint64_t> rx_without_header;  // messages dropped because their header was not seen
  std::atomic<uint64_t> tx_packets, tx_bytes, tx_trains, tx_calls;
  // Packets that did not leave: the socket buffer or the queue of the device is full, larger than
  // the MTU, refused for another reason, part of a train that GSO failed to send.
  std::atomic<uint64_t> tx_dropped_full, tx_dropped_too_large, tx_dropped_error, tx_dropped_gso;
  std::atomic<uint64_t> faults_reported, faults_lost, sends_repeated;
};

struct UdpLinkOptions {
  sockaddr_storage address{};
  int receive_fd = -1;               // owned from now on
  uint32_t buffer_bytes = 4 << 20;   // asked for, both directions
  std::atomic<bool>* gso = nullptr;  // of the device: true while trains may leave
  PcapWriter* pcap = nullptr;        // may be null
  uint32_t port_seed = 0;            // where the search for source ports begins
  bool full_icrc = false;            // see IPv4 headers, so that the ICRC can be checked in full
  unsigned index = 0, reactors = 1;  // of the receive group
};

class UdpLink final : public Link {
 public:
  static constexpr unsigned kSendSockets = 4;

  static Result<std::unique_ptr<UdpLink>> open(const UdpLinkOptions& options);
  ~UdpLink() override;
  UdpLink(const UdpLink&) = delete;
  UdpLink& operator=(const UdpLink&) = delete;

  void send(std::span<const Train> trains) override;
  uint16_t segments_max() const override;
  uint32_t train_bytes_max() const override;

  // Takes what has arrived, a few messages at most; returns the number of packets.
  int receive(TimeNs now, LinkEvents& events);
  // Hands out what was reported about sent packets.
  void deliver_faults(LinkEvents& events);
  // Before sleep: the next receive() looks at every error queue.
  void expect_wake_up() { check_errors_ = true; }

  // The source port for packets to one destination reactor of one peer: NICs and switches spread
  // flows by it, and packets of different ports are never merged.
  uint16_t source_port(const sockaddr_storage& peer, uint8_t train_key) const;
  uint32_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  const LinkCounters& counters() const { return counters_; }
  // Every descriptor that ends sleep.
  std::vector<int> descriptors() const;

 private:
  static constexpr unsigned kReceiveBatch = 4, kSendBatch = 64, kFaults = 64;
  static constexpr size_t kReceiveBytes = 64 << 10;
  struct Receiving {
    sockaddr_storage source;
    iovec vector;
    alignas(cmsghdr) uint8_t control[128];
  };
  struct Sending {
    iovec vector;
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))];
  };

  explicit UdpLink(const UdpLinkOptions& options);
  void prepare_receive(unsigned count);
  void forget_headers(bool received, TimeNs now);
  int take(const mmsghdr& message, LinkEvents& events);
  void prepare_send(unsigned index, const Train& train);
  void transmit(int fd, std::span<const Train> trains);
  // What became of the message at `index` when the kernel refused it: repeat it or go on.
  enum class Refused : uint8_t { Repeat, Skip, StopAll };
  Refused refused(int fd, const Train& train, msghdr& message, unsigned repeats);
  Refused without_gso(int fd, const Train& train, msghdr& message);
  void too_large(const Train& train);
  unsigned read_errors(int fd);
  void add_fault(const ErrorReport& report);
  unsigned sender_of(uint16_t port) const;

  sockaddr_storage address_;  // with port 4791
  int receive_fd_;
  std::array<SendSocket, kSendSockets> senders_{};
  std::array<bool, kSendSockets> used_{};  // something was sent since the link opened
  std::atomic<bool>* gso_;
  PcapWriter* pcap_;
  IcrcReceiver pcap_icrc_;
  uint32_t receive_buffer_bytes_ = 0;
  LinkCounters counters_{};

  std::unique_ptr<HeaderWitness> witness_;  // null: IPv4 headers are not seen
  std::unique_ptr<uint8_t[]> buffers_;
  mmsghdr receive_messages_[kReceiveBatch]{};
  Receiving receiving_[kReceiveBatch];
  unsigned streak_ = 0;    // receives in a row that found something: many mean a busy link
  bool batching_ = false;  // recvmmsg is better from about four messages up, recvmsg below

  mmsghdr send_messages_[kSendBatch]{};
  Sending sending_[kSendBatch];

  ErrorReport faults_[kFaults];
  unsigned fault_count_ = 0;
  bool check_errors_ = false, sent_since_check_ = false;
  TimeNs last_check_ = 0;
  TimeNs last_message_ = 0;  // with a witness: when one came, or headers were forgotten
};

}  // namespace nvmeof::rdma::soft
