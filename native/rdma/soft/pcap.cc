// The packet capture file; see pcap.h.
#include "rdma/soft/pcap.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {
namespace {

constexpr uint32_t kMagicNanoseconds = 0xa1b23c4d;  // native byte order, as the format wants
constexpr uint32_t kLinkTypeRaw = 101;
constexpr uint32_t kSnapLength = 65535;
constexpr unsigned kV4Bytes = 20, kV6Bytes = 40, kUdpBytes = 8;
constexpr uint64_t kFlushEveryNs = 1'000'000'000;

struct FileHeader {
  uint32_t magic = kMagicNanoseconds;
  uint16_t major = 2, minor = 4;
  int32_t zone = 0;
  uint32_t accuracy = 0, snap_length = kSnapLength, link_type = kLinkTypeRaw;
};
static_assert(sizeof(FileHeader) == 24);
struct RecordHeader {
  uint32_t seconds, nanoseconds, captured, original;
};
static_assert(sizeof(RecordHeader) == 16);

uint64_t now_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

uint32_t add_words(uint32_t sum, const uint8_t* bytes, size_t length) {  // RFC 1071
  for (size_t i = 0; i + 1 < length; i += 2) sum += get16(bytes + i);
  return sum;
}
uint16_t fold(uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

unsigned build_v4(uint8_t* p, const sockaddr_in& from, const sockaddr_in& to, uint32_t udp_bytes,
                  uint16_t ip_id, uint8_t traffic_class, bool dont_fragment) {
  std::memset(p, 0, kV4Bytes);
  p[0] = 0x45;
  p[1] = traffic_class;
  put16(p + 2, static_cast<uint16_t>(kV4Bytes + udp_bytes));
  put16(p + 4, ip_id);
  put16(p + 6, dont_fragment ? 0x4000 : 0);
  p[8] = 64;  // time to live: not known of arrivals, and not covered by the ICRC
  p[9] = IPPROTO_UDP;
  std::memcpy(p + 12, &from.sin_addr, 4);
  std::memcpy(p + 16, &to.sin_addr, 4);
  put16(p + 10, fold(add_words(0, p, kV4Bytes)));
  return kV4Bytes;
}

unsigned build_v6(uint8_t* p, const sockaddr_in6& from, const sockaddr_in6& to, uint32_t udp_bytes,
                  uint8_t traffic_class) {
  put32(p, 6u << 28 | static_cast<uint32_t>(traffic_class) << 20);
  put16(p + 4, static_cast<uint16_t>(udp_bytes));
  p[6] = IPPROTO_UDP;
  p[7] = 64;
  std::memcpy(p + 8, &from.sin6_addr, 16);
  std::memcpy(p + 24, &to.sin6_addr, 16);
  return kV6Bytes;
}

}  // namespace

Result<std::unique_ptr<PcapWriter>> PcapWriter::open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) {
    const int code = errno;
    return Error{code, "cannot create the capture file " + path + ": " + std::strerror(code)};
  }
  std::setvbuf(file, nullptr, _IOFBF, 1 << 20);
  const FileHeader header;
  std::unique_ptr<PcapWriter> writer(new PcapWriter(file));
  writer->failed_ = std::fwrite(&header, sizeof header, 1, file) != 1 || std::fflush(file) != 0;
  if (writer->failed_) return Error{EIO, "cannot write to the capture file " + path};
  return writer;
}

PcapWriter::PcapWriter(std::FILE* file) : file_(file), last_flush_ns_(now_ns(CLOCK_MONOTONIC)) {}

PcapWriter::~PcapWriter() {
  std::fclose(file_);
}

void PcapWriter::sent(const Train& train) {
  uint32_t offset = 0;
  for (uint16_t i = 0; i < train.segments && offset < train.total_bytes; i++) {
    const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - offset);
    record(train.flow->local, train.flow->remote, train.bytes + offset, length, i,
           train.flow->traffic_class, true);
    offset += length;
  }
}

void PcapWriter::received(const Arrival& arrival, uint16_t ip_id, bool dont_fragment) {
  record(unmapped(*arrival.source), unmapped(*arrival.destination), arrival.bytes, arrival.length,
         arrival.ip_id >= 0 ? static_cast<uint16_t>(arrival.ip_id) : ip_id, arrival.traffic_class,
         dont_fragment);
}

void PcapWriter::record(const sockaddr_storage& source, const sockaddr_storage& destination,
                        const uint8_t* bytes, uint32_t length, uint16_t ip_id,
                        uint8_t traffic_class, bool dont_fragment) {
  if (length > kSnapLength - kV6Bytes - kUdpBytes) return;  // larger than any datagram
  const uint32_t udp_bytes = kUdpBytes + length;
  uint8_t headers[kV6Bytes + kUdpBytes];
  const unsigned ip =
      source.ss_family == AF_INET6
          ? build_v6(headers, reinterpret_cast<const sockaddr_in6&>(source),
                     reinterpret_cast<const sockaddr_in6&>(destination), udp_bytes, traffic_class)
          : build_v4(headers, reinterpret_cast<const sockaddr_in&>(source),
                     reinterpret_cast<const sockaddr_in&>(destination), udp_bytes, ip_id,
                     traffic_class, dont_fragment);
  put16(headers + ip, port_of(source));
  put16(headers + ip + 2, port_of(destination));
  put16(headers + ip + 4, static_cast<uint16_t>(udp_bytes));
  put16(headers + ip + 6, 0);  // no checksum, as RoCEv2 hardware sends
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  const uint64_t wall = now_ns(CLOCK_REALTIME);
  const uint32_t total = ip + udp_bytes;
  const RecordHeader header{static_cast<uint32_t>(wall / 1'000'000'000),
                            static_cast<uint32_t>(wall % 1'000'000'000), total, total};
  failed_ = std::fwrite(&header, sizeof header, 1, file_) != 1 ||
            std::fwrite(headers, ip + kUdpBytes, 1, file_) != 1 ||
            std::fwrite(bytes, length, 1, file_) != 1;
  packets_ += !failed_;
  const uint64_t now = now_ns(CLOCK_MONOTONIC);
  if (now - last_flush_ns_ >= kFlushEveryNs) {
    last_flush_ns_ = now;
    failed_ |= std::fflush(file_) != 0;
  }
}

void PcapWriter::flush() {
  const std::lock_guard lock(mutex_);
  last_flush_ns_ = now_ns(CLOCK_MONOTONIC);
  failed_ |= std::fflush(file_) != 0;
}

uint64_t PcapWriter::packets() const {
  const std::lock_guard lock(mutex_);
  return packets_;
}

bool PcapWriter::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace nvmeof::rdma::soft
