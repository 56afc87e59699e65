#include "rdma/soft/udp_link.h"

#include <netinet/udp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

// How often error queues are looked at while nothing arrives and the reactor does not sleep.
constexpr TimeNs kErrorCheckInterval = 100'000;
// How long nothing arrives before headers without a message are those of messages that were lost.
constexpr TimeNs kHeaderRest = 10'000'000;
// A pending error fails a send that has nothing to do with it; a host may have many dead peers.
constexpr unsigned kRepeatsMax = 16;

using reactor::add_relaxed;

uint8_t* put_control(uint8_t* at, int level, int type, const void* data, size_t bytes) {
  auto* const c = reinterpret_cast<cmsghdr*>(at);
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(c), data, bytes);
  return at + CMSG_SPACE(bytes);
}

}  // namespace

UdpLink::UdpLink(const UdpLinkOptions& options)
    : address_(with_port(options.address, kUdpPort)),
      receive_fd_(options.receive_fd),
      gso_(options.gso),
      pcap_(options.pcap),
      buffers_(new uint8_t[kReceiveBatch * kReceiveBytes]) {
  for (unsigned i = 0; i < kReceiveBatch; i++)
    receiving_[i].vector = {buffers_.get() + i * kReceiveBytes, kReceiveBytes};
}

Result<std::unique_ptr<UdpLink>> UdpLink::open(const UdpLinkOptions& options) {
  std::unique_ptr<UdpLink> link(new UdpLink(options));
  link->receive_buffer_bytes_ = request_receive_buffer(options.receive_fd, options.buffer_bytes);
  if (options.full_icrc && options.address.ss_family == AF_INET) {
    auto witness = HeaderWitness::open(
        {options.address, options.index, options.reactors, options.buffer_bytes});
    if (!witness) return witness.error();
    link->witness_ = std::move(*witness);
  }
  uint32_t port = options.port_seed;
  for (SendSocket& sender : link->senders_) {
    auto opened =
        open_send_socket(options.address, static_cast<uint16_t>(0xC000 | (port & 0x3FFF)));
    if (!opened) return opened.error();
    sender = *opened;
    request_send_buffer(sender.fd, options.buffer_bytes);
    port = sender.port + 1u;
  }
  return link;
}

UdpLink::~UdpLink() {
  if (receive_fd_ >= 0) close(receive_fd_);
  for (const SendSocket& sender : senders_) {
    if (sender.fd >= 0) close(sender.fd);
  }
}

std::vector<int> UdpLink::descriptors() const {
  std::vector<int> all{receive_fd_};
  for (const SendSocket& sender : senders_) all.push_back(sender.fd);
  return all;
}

uint16_t UdpLink::source_port(const sockaddr_storage& peer, uint8_t train_key) const {
  unsigned hash = train_key;
  for (const uint8_t byte : gid_of(peer)) hash += byte;
  return senders_[hash % kSendSockets].port;
}

unsigned UdpLink::sender_of(uint16_t port) const {
  for (unsigned i = 0; i < kSendSockets; i++) {
    if (senders_[i].port == port) return i;
  }
  return 0;  // its ICRC will be wrong; flows are made with source_port()
}

// ---- Sending

uint16_t UdpLink::segments_max() const {
  // 64 is what every kernel with UDP_SEGMENT takes (128 since 6.9).
  return gso_->load(std::memory_order_relaxed) ? 64 : 1;
}

uint32_t UdpLink::train_bytes_max() const {
  return address_.ss_family == AF_INET6 ? 65535 - 48 : 65535 - 28;
}

void UdpLink::prepare_send(unsigned index, const Train& train) {
  msghdr& header = send_messages_[index].msg_hdr;
  Sending& sending = sending_[index];
  const bool trained = train.segments > 1 && gso_->load(std::memory_order_relaxed);
  // Without GSO only the first segment has the identification that its ICRC covers.
  const uint32_t bytes =
      trained ? train.total_bytes : std::min<uint32_t>(train.total_bytes, train.segment_bytes);
  if (!trained && train.segments > 1) add_relaxed(counters_.tx_dropped_gso, train.segments - 1u);
  sending.vector = {const_cast<uint8_t*>(train.bytes), bytes};
  header.msg_name = const_cast<sockaddr_storage*>(&train.flow->remote);
  header.msg_namelen = address_length(train.flow->remote);
  header.msg_iov = &sending.vector;
  header.msg_iovlen = 1;
  uint8_t* control = sending.control;
  if (trained) {
    const uint16_t segment = train.segment_bytes;
    control = put_control(control, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment);
  }
  if (train.flow->traffic_class != 0) {
    const int value = train.flow->traffic_class;
    const bool v6 = address_.ss_family == AF_INET6;
    control = put_control(control, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS,
                          &value, sizeof value);
  }
  header.msg_control = control == sending.control ? nullptr : sending.control;
  header.msg_controllen = static_cast<size_t>(control - sending.control);
}

void UdpLink::send(std::span<const Train> trains) {
  while (!trains.empty()) {
    const uint16_t port = port_of(trains[0].flow->local);
    size_t count = 1;
    while (count < trains.size() && count < kSendBatch &&
           port_of(trains[count].flow->local) == port)
      count++;
    const unsigned sender = sender_of(port);
    used_[sender] = true;
    transmit(senders_[sender].fd, trains.first(count));
    trains = trains.subspan(count);
  }
}

void UdpLink::transmit(int fd, std::span<const Train> trains) {
  for (unsigned i = 0; i < trains.size(); i++) {
    if (pcap_ != nullptr) pcap_->sent(trains[i]);
    prepare_send(i, trains[i]);
    add_relaxed(counters_.tx_packets, trains[i].segments);
    add_relaxed(counters_.tx_bytes, trains[i].total_bytes);
  }
  add_relaxed(counters_.tx_trains, trains.size());
  sent_since_check_ = true;
  const auto count = static_cast<unsigned>(trains.size());
  unsigned done = 0, repeats = 0;
  while (done < count) {
    mmsghdr* const next = &send_messages_[done];
    add_relaxed(counters_.tx_calls, 1);
    const int sent = count - done == 1 ? (sendmsg(fd, &next->msg_hdr, MSG_DONTWAIT) < 0 ? -1 : 1)
                                       : sendmmsg(fd, next, count - done, MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<unsigned>(sent);
      repeats = 0;
      continue;
    }
    switch (refused(fd, trains[done], next->msg_hdr, repeats)) {
      case Refused::Repeat:
        repeats++;
        break;
      case Refused::Skip:
        done++;
        repeats = 0;
        break;
      case Refused::StopAll:
        for (; done < count; done++) add_relaxed(counters_.tx_dropped_full, trains[done].segments);
        break;
    }
  }
}

UdpLink::Refused UdpLink::refused(int fd, const Train& train, msghdr& message, unsigned repeats) {
  switch (errno) {
    case EINTR:
      return Refused::Repeat;
    case EAGAIN:
      return Refused::StopAll;
    case ENOBUFS:  // the device's queue dropped it
    case ENOMEM:
      add_relaxed(counters_.tx_dropped_full, train.segments);
      return Refused::Skip;
    case EMSGSIZE:
      // Of a train this can mean that the route's MTU shrank: then the error queue has it too.
      read_errors(fd);
      too_large(train);
      return Refused::Skip;
    case EIO:
    case EINVAL:
      if (message.msg_controllen != 0 && train.segments > 1) return without_gso(fd, train, message);
      break;
    default:
      break;
  }
  // Most likely an error of an earlier packet to somebody else: read it, then this one may go.
  const int code = errno;
  if (read_errors(fd) > 0 && repeats < kRepeatsMax) {
    add_relaxed(counters_.sends_repeated, 1);
    return Refused::Repeat;
  }
  if (code == ECONNREFUSED && repeats < kRepeatsMax) return Refused::Repeat;  // it was cleared
  add_relaxed(counters_.tx_dropped_error, train.segments);
  if (code == ENETUNREACH || code == EHOSTUNREACH || code == EACCES || code == EPERM) {
    ErrorReport report;
    report.fault = SendFault::Unreachable;
    report.peer = train.flow->remote;
    report.has_bth = true;
    report.dest_qpn = get24(train.bytes + 5);
    report.psn = get24(train.bytes + 9);
    add_fault(report);
  }
  return Refused::Skip;
}

// A train was refused. When its first packet goes alone, the kernel or the device cannot do GSO
// (or no longer): no trains from now on, the rest of this one is repaired by retransmission.
UdpLink::Refused UdpLink::without_gso(int fd, const Train& train, msghdr& message) {
  const int code = errno;
  message.msg_iov[0].iov_len = train.segment_bytes;
  message.msg_control = nullptr;
  message.msg_controllen = 0;
  add_relaxed(counters_.tx_dropped_gso, train.segments - 1u);
  if (sendmsg(fd, &message, MSG_DONTWAIT) < 0 && errno == EMSGSIZE) {
    too_large(train);
    return Refused::Skip;
  }
  if (code == EIO || code == EINVAL) gso_->store(false, std::memory_order_relaxed);
  return Refused::Skip;
}

void UdpLink::too_large(const Train& train) {
  add_relaxed(counters_.tx_dropped_too_large, train.segments);
  ErrorReport report;
  report.fault = SendFault::MtuTooLarge;
  report.peer = train.flow->remote;
  report.has_bth = true;
  report.dest_qpn = get24(train.bytes + 5);
  report.psn = get24(train.bytes + 9);
  add_fault(report);
}

// ---- What became of sent packets

void UdpLink::add_fault(const ErrorReport& report) {
  add_relaxed(counters_.faults_reported, 1);
  if (fault_count_ < kFaults) {
    faults_[fault_count_++] = report;
  } else {
    add_relaxed(counters_.faults_lost, 1);
  }
}

unsigned UdpLink::read_errors(int fd) {
  unsigned count = 0;
  ErrorReport report;
  while (count < kFaults && read_error_queue(fd, &report)) {
    add_fault(report);
    count++;
  }
  return count;
}

void UdpLink::deliver_faults(LinkEvents& events) {
  for (unsigned i = 0; i < fault_count_; i++) events.on_fault(faults_[i]);
  fault_count_ = 0;
}

// ---- Receiving

void UdpLink::prepare_receive(unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    msghdr& header = receive_messages_[i].msg_hdr;
    header.msg_name = &receiving_[i].source;
    header.msg_namelen = sizeof receiving_[i].source;
    header.msg_iov = &receiving_[i].vector;
    header.msg_iovlen = 1;
    header.msg_control = receiving_[i].control;
    header.msg_controllen = sizeof receiving_[i].control;
    header.msg_flags = 0;
  }
}

// A header comes before its message, but how long before is the scheduler's affair.
void UdpLink::forget_headers(bool received, TimeNs now) {
  if (received) {
    last_message_ = now;
  } else if (now - last_message_ >= kHeaderRest) {
    witness_->forget();
    last_message_ = now;
  }
}

// Splits one received message into its packets.
int UdpLink::take(const mmsghdr& message, LinkEvents& events) {
  const msghdr& header = message.msg_hdr;
  const auto* bytes = static_cast<const uint8_t*>(header.msg_iov->iov_base);
  uint32_t left = message.msg_len;
  uint32_t segment = left;
  uint8_t traffic_class = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      int value = 0;
      std::memcpy(&value, CMSG_DATA(c), sizeof value);
      if (value > 0) segment = static_cast<uint32_t>(value);
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      traffic_class = *CMSG_DATA(c);
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      int value = 0;
      std::memcpy(&value, CMSG_DATA(c), sizeof value);
      traffic_class = static_cast<uint8_t>(value);
    }
  }
  add_relaxed(counters_.rx_bytes, left);
  Arrival arrival{static_cast<const sockaddr_storage*>(header.msg_name),
                  &address_,
                  bytes,
                  0,
                  -1,
                  traffic_class};
  if (witness_ != nullptr && !witness_->find(*arrival.source, bytes, left, &arrival.seen)) {
    add_relaxed(counters_.rx_without_header, 1);
    return 0;
  }
  int packets = 0;
  for (uint16_t index = 0; left > 0; index++) {
    arrival.length = std::min(left, segment);
    if (pcap_ != nullptr) {
      const IcrcVerdict verdict = pcap_icrc_.check(arrival, index);
      pcap_->received(arrival, verdict.ip_id, verdict.dont_fragment);
    }
    events.on_packet(arrival, index);
    if (witness_ != nullptr) arrival.seen.of = SeenHeader::Of::FirstOfMessage;
    arrival.bytes += arrival.length;
    left -= arrival.length;
    packets++;
  }
  return packets;
}

int UdpLink::receive(TimeNs now, LinkEvents& events) {
  const unsigned limit = batching_ ? kReceiveBatch : 1;
  prepare_receive(limit);
  int messages;
  if (limit == 1) {
    const ssize_t length = recvmsg(receive_fd_, &receive_messages_[0].msg_hdr, MSG_DONTWAIT);
    messages = length < 0 ? -1 : 1;
    receive_messages_[0].msg_len = static_cast<unsigned>(length < 0 ? 0 : length);
  } else {
    messages = recvmmsg(receive_fd_, receive_messages_, limit, MSG_DONTWAIT, nullptr);
  }
  add_relaxed(counters_.rx_calls, 1);
  if (messages < 0 && errno != EAGAIN && errno != EINTR) add_relaxed(counters_.rx_errors, 1);

  int packets = 0;
  for (int i = 0; i < messages; i++) packets += take(receive_messages_[i], events);
  if (messages > 0) {
    add_relaxed(counters_.rx_messages, static_cast<uint64_t>(messages));
    add_relaxed(counters_.rx_packets, static_cast<uint64_t>(packets));
  }
  // A message at every look, or several at once: take them in batches; rarely more than one: don't.
  constexpr unsigned kBusyStreak = 4, kIdleStreak = 8;
  const bool plenty = batching_ ? messages > 1 : messages > 0;
  if (plenty == batching_) {
    streak_ = 0;
  } else if (++streak_ >= (batching_ ? kIdleStreak : kBusyStreak)) {
    batching_ = !batching_;
    streak_ = 0;
  }
  if (witness_ != nullptr) forget_headers(messages > 0, now);
  const bool due = sent_since_check_ && now - last_check_ >= kErrorCheckInterval;
  if (messages <= 0 && (check_errors_ || due)) {
    for (unsigned i = 0; i < kSendSockets; i++) {
      if (used_[i]) read_errors(senders_[i].fd);
    }
    check_errors_ = sent_since_check_ = false;
    last_check_ = now;
  }
  return packets;
}

}  // namespace nvmeof::rdma::soft
