// Writes packets to a pcap file as they stand on the wire: raw IP (LINKTYPE_RAW, 101) with the IPv4
// or IPv6 and UDP headers rebuilt, trains taken apart, so that Wireshark shows a session and finds
// every ICRC right. Any thread (a mutex; only users who asked for a capture pay for it). The owner
// flushes it about once a second.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "rdma/soft/link.h"
#include "reactor/result.h"

namespace nvmeof::rdma::soft {

class PcapWriter {
 public:
  // Creates or truncates the file.
  static Result<std::unique_ptr<PcapWriter>> open(const std::string& path);
  ~PcapWriter();  // flushes and closes
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  void sent(const Train& train);  // segment i has identification i
  // `ip_id`: IcrcVerdict's when the arrival does not know it (0 when the check failed).
  void received(const Arrival& arrival, uint16_t ip_id, bool dont_fragment = true);
  void flush();
  uint64_t packets() const;
  // A write failed (disk full): recording stopped. Counted as soft.pcap_failed.
  bool failed() const;

 private:
  explicit PcapWriter(std::FILE* file);
  void record(const sockaddr_storage& source, const sockaddr_storage& destination,
              const uint8_t* bytes, uint32_t length, uint16_t ip_id, uint8_t traffic_class,
              bool dont_fragment);

  mutable std::mutex mutex_;
  std::FILE* file_;
  uint64_t packets_ = 0;
  bool failed_ = false;
  uint64_t last_flush_ns_ = 0;
};

}  // namespace nvmeof::rdma::soft
