#include "support/pcap_reader.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace nvmeof::test {
namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "captures: %s\n", what.c_str());
  std::exit(2);
}

std::vector<uint8_t> read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) die("cannot open " + path);
  std::vector<uint8_t> bytes;
  uint8_t block[65536];
  for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;)
    bytes.insert(bytes.end(), block, block + n);
  std::fclose(file);
  return bytes;
}

uint32_t native32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
uint16_t be16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] << 8 | p[1]);
}

bool parse_ip(const uint8_t* ip, size_t length, CapturedPacket& packet) {
  size_t header, total;
  if (length >= 28 && ip[0] == 0x45 && ip[9] == 17) {
    header = 20;
    total = be16(ip + 2);
    packet.ip_id = be16(ip + 4);
    packet.dont_fragment = (ip[6] & 0x40) != 0;
    packet.traffic_class = ip[1];
    auto& from = reinterpret_cast<sockaddr_in&>(packet.source);
    auto& to = reinterpret_cast<sockaddr_in&>(packet.destination);
    from.sin_family = to.sin_family = AF_INET;
    std::memcpy(&from.sin_addr, ip + 12, 4);
    std::memcpy(&to.sin_addr, ip + 16, 4);
    std::memcpy(&from.sin_port, ip + header, 2);
    std::memcpy(&to.sin_port, ip + header + 2, 2);
  } else if (length >= 48 && ip[0] >> 4 == 6 && ip[6] == 17) {
    header = 40;
    total = header + be16(ip + 4);
    packet.traffic_class = static_cast<uint8_t>(ip[0] << 4 | ip[1] >> 4);
    auto& from = reinterpret_cast<sockaddr_in6&>(packet.source);
    auto& to = reinterpret_cast<sockaddr_in6&>(packet.destination);
    from.sin6_family = to.sin6_family = AF_INET6;
    std::memcpy(&from.sin6_addr, ip + 8, 16);
    std::memcpy(&to.sin6_addr, ip + 24, 16);
    std::memcpy(&from.sin6_port, ip + header, 2);
    std::memcpy(&to.sin6_port, ip + header + 2, 2);
  } else {
    return false;
  }
  if (total > length || total < header + 8) return false;
  packet.ip.assign(ip, ip + total);
  packet.udp.assign(ip + header + 8, ip + total);
  return be16(ip + header + 2) == 4791;
}

}  // namespace

std::vector<CapturedPacket> read_pcap(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  if (bytes.size() < 24) die(path + " is not a capture");
  const uint32_t magic = native32(bytes.data());
  const double fraction = magic == 0xa1b2c3d4 ? 1e-6 : magic == 0xa1b23c4d ? 1e-9 : 0;
  if (fraction == 0) die(path + ": unknown magic");
  const uint32_t link_type = native32(bytes.data() + 20);
  const size_t link_header = link_type == 1 ? 14 : 0;
  if (link_type != 1 && link_type != 101) die(path + ": unknown link type");
  std::vector<CapturedPacket> packets;
  for (size_t at = 24; at + 16 <= bytes.size();) {
    const uint8_t* record = bytes.data() + at;
    const size_t length = native32(record + 8);
    if (length > bytes.size() - at - 16 || length < link_header) die(path + ": truncated");
    CapturedPacket packet;
    packet.time = native32(record) + native32(record + 4) * fraction;
    packet.file = std::filesystem::path(path).stem().string();
    packet.number = packets.size() + 1;
    if (parse_ip(record + 16 + link_header, length - link_header, packet))
      packets.push_back(std::move(packet));
    at += 16 + length;
  }
  return packets;
}

std::string captures_directory() {
  namespace fs = std::filesystem;
  if (const char* given = std::getenv("NVMEOF_CAPTURES")) return given;
  for (fs::path at = fs::current_path();; at = at.parent_path()) {
    const fs::path candidate = at / "test" / "fixtures" / "captures";
    if (fs::is_directory(candidate)) return candidate.string();
    if (at == at.parent_path()) die("test/fixtures/captures not found above the working directory");
  }
}

std::vector<std::string> capture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(captures_directory()))
    if (entry.path().extension() == ".pcap") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  if (names.empty()) die("no captures");
  return names;
}

std::vector<CapturedPacket> captured(const std::string& name) {
  return read_pcap(captures_directory() + "/" + name + ".pcap");
}

const std::vector<CapturedPacket>& all_captured() {
  static const std::vector<CapturedPacket> all = [] {
    std::vector<CapturedPacket> packets;
    for (const std::string& name : capture_names())
      for (CapturedPacket& packet : captured(name)) packets.push_back(std::move(packet));
    return packets;
  }();
  return all;
}

}  // namespace nvmeof::test
