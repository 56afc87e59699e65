// Reads the kept captures (Ethernet or raw IP) for the tests: the RoCEv2 packets of a file with the
// fields of their IP and UDP headers.
#pragma once
#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nvmeof::test {

struct CapturedPacket {
  double time = 0;  // seconds
  std::string file;
  size_t number = 0;                         // from 1, as in the .txt beside the capture
  sockaddr_storage source{}, destination{};  // with UDP ports
  int32_t ip_id = -1;                        // -1: IPv6
  bool dont_fragment = true;
  uint8_t traffic_class = 0;
  std::vector<uint8_t> ip;   // from the IP header on
  std::vector<uint8_t> udp;  // UDP payload: BTH .. ICRC
};

// Aborts with a message when the file cannot be read.
std::vector<CapturedPacket> read_pcap(const std::string& path);

// Every capture of test/fixtures/captures, found from the working directory upward (or from
// NVMEOF_CAPTURES).
std::string captures_directory();
std::vector<std::string> capture_names();  // "main-v4", ...
const std::vector<CapturedPacket>& all_captured();
std::vector<CapturedPacket> captured(const std::string& name);

}  // namespace nvmeof::test
