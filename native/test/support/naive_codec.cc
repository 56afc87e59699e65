#include "support/naive_codec.h"

#include <utility>

namespace nvmeof::test {
namespace {

struct Field {
  const char* name;
  unsigned bytes;
};

// The extension headers of each opcode, spelled out once more.
bool extension_fields(unsigned opcode, std::vector<Field>& fields) {
  const std::vector<Field> reth = {{"reth.va", 8}, {"reth.rkey", 4}, {"reth.length", 4}};
  const std::vector<Field> aeth = {{"aeth.syndrome", 1}, {"aeth.msn", 3}};
  const std::vector<Field> imm = {{"imm", 4}};
  const std::vector<Field> ieth = {{"ieth", 4}};
  const std::vector<Field> deth = {{"deth.qkey", 4}, {"zero", 1}, {"deth.qpn", 3}};
  const std::vector<Field> atomic = {
      {"atomic.va", 8}, {"atomic.rkey", 4}, {"atomic.swap", 8}, {"atomic.compare", 8}};
  const std::vector<Field> original = {{"atomic.original", 8}};
  const std::vector<Field> sixteen = {{"zero", 8}, {"zero", 8}};
  std::vector<const std::vector<Field>*> parts;
  switch (opcode) {
    case 0x00:
    case 0x01:
    case 0x02:
    case 0x04:
    case 0x07:
    case 0x08:
    case 0x0e:
    case 0x20:
    case 0x21:
    case 0x22:
    case 0x24:
    case 0x27:
    case 0x28:
      break;
    case 0x03:
    case 0x05:
    case 0x09:
    case 0x23:
    case 0x25:
    case 0x29:
      parts = {&imm};
      break;
    case 0x06:
    case 0x0a:
    case 0x0c:
    case 0x26:
    case 0x2a:
      parts = {&reth};
      break;
    case 0x0b:
    case 0x2b:
      parts = {&reth, &imm};
      break;
    case 0x0d:
    case 0x0f:
    case 0x10:
    case 0x11:
      parts = {&aeth};
      break;
    case 0x12:
      parts = {&aeth, &original};
      break;
    case 0x13:
    case 0x14:
      parts = {&atomic};
      break;
    case 0x16:
    case 0x17:
      parts = {&ieth};
      break;
    case 0x64:
      parts = {&deth};
      break;
    case 0x65:
      parts = {&deth, &imm};
      break;
    case 0x81:
      parts = {&sixteen};
      break;
    default:
      return false;
  }
  for (const auto* part : parts) fields.insert(fields.end(), part->begin(), part->end());
  return true;
}

bool may_carry_payload(unsigned opcode) {
  return opcode != 0x0c && opcode != 0x81 && !(opcode >= 0x11 && opcode <= 0x14);
}

uint64_t take(const Bytes& bytes, size_t& at, unsigned count) {
  uint64_t value = 0;
  while (count-- > 0) value = value << 8 | bytes[at++];
  return value;
}
void give(Bytes& bytes, uint64_t value, unsigned count) {
  while (count-- > 0) bytes.push_back(static_cast<uint8_t>(value >> (8 * count)));
}
uint64_t value_of(const std::map<std::string, uint64_t>& fields, const char* name) {
  const auto found = fields.find(name);
  return found == fields.end() ? 0 : found->second;
}

}  // namespace

uint32_t naive_crc32(const Bytes& bytes) {
  uint32_t crc = 0xffffffff;
  for (const uint8_t byte : bytes)
    for (int bit = 0; bit < 8; bit++) {
      const bool feedback = ((crc ^ (byte >> bit)) & 1) != 0;
      crc >>= 1;
      if (feedback) crc ^= 0xedb88320;
    }
  return ~crc;
}

uint32_t naive_icrc(Bytes p) {
  size_t udp = 40;
  if (p[0] >> 4 == 4) {
    udp = 20;
    p[1] = p[8] = p[10] = p[11] = 0xff;
  } else {
    p[0] |= 0x0f;
    p[1] = p[2] = p[3] = p[7] = 0xff;
  }
  p[udp + 6] = p[udp + 7] = 0xff;
  p[udp + 8 + 4] = 0xff;
  Bytes covered(8, 0xff);
  covered.insert(covered.end(), p.begin(), p.end() - 4);
  return naive_crc32(covered);
}

std::map<std::string, uint64_t> naive_decode(const Bytes& udp, Bytes& payload) {
  std::map<std::string, uint64_t> fields;
  std::vector<Field> extensions;
  if (udp.size() < 16 || !extension_fields(udp[0], extensions)) return {};
  size_t at = 12;
  size_t headers = 12;
  for (const Field& field : extensions) headers += field.bytes;
  const size_t pad = udp[1] >> 4 & 3;
  if (udp.size() < headers + pad + 4) return {};
  fields["opcode"] = udp[0];
  fields["solicited"] = udp[1] >> 7;
  fields["migreq"] = udp[1] >> 6 & 1;
  fields["pkey"] = static_cast<uint64_t>(udp[2] << 8 | udp[3]);
  fields["fecn"] = udp[4] >> 7;
  fields["becn"] = udp[4] >> 6 & 1;
  fields["qpn"] = static_cast<uint64_t>(udp[5] << 16 | udp[6] << 8 | udp[7]);
  fields["ackreq"] = udp[8] >> 7;
  fields["psn"] = static_cast<uint64_t>(udp[9] << 16 | udp[10] << 8 | udp[11]);
  for (const Field& field : extensions) fields[field.name] = take(udp, at, field.bytes);
  fields.erase("zero");
  payload.assign(udp.begin() + static_cast<long>(at), udp.end() - 4 - static_cast<long>(pad));
  if ((udp[1] & 15) != 0 || fields["qpn"] == 0 || (fields["pkey"] & 0x7fff) != 0x7fff) return {};
  if ((payload.size() + pad) % 4 != 0) return {};
  if (!may_carry_payload(udp[0]) && payload.size() + pad != 0) return {};
  return fields;
}

Bytes naive_encode(const std::map<std::string, uint64_t>& fields, const Bytes& payload) {
  const auto get = [&](const char* name) { return value_of(fields, name); };
  const unsigned pad = static_cast<unsigned>((4 - payload.size() % 4) % 4);
  Bytes out;
  give(out, get("opcode"), 1);
  give(out, get("solicited") << 7 | get("migreq") << 6 | pad << 4, 1);
  give(out, get("pkey"), 2);
  give(out, get("fecn") << 7 | get("becn") << 6, 1);
  give(out, get("qpn"), 3);
  give(out, get("ackreq") << 7, 1);
  give(out, get("psn"), 3);
  std::vector<Field> extensions;
  extension_fields(static_cast<unsigned>(get("opcode")), extensions);
  for (const Field& field : extensions) give(out, get(field.name), field.bytes);
  out.insert(out.end(), payload.begin(), payload.end());
  out.insert(out.end(), pad, 0);
  return out;
}

}  // namespace nvmeof::test
