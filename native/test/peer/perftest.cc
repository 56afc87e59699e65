// perftest: ib_send_bw, ib_write_bw, ib_read_bw and ib_atomic_bw. Both sides exchange messages of
// equal size over TCP, the client writing first: version, system data, path MTU, then their queue
// pairs as "lid:reads:qpn:psn:rkey:address:gid:srqn" whenever they wait for each other, and the
// results.
#include <cstdio>
#include <cstring>

#include "peer/exchange.h"
#include "peer/programs.h"

namespace nvmeof::peer {

using namespace rdma;

namespace {

constexpr uint16_t kPort = 18515;
constexpr uint32_t kQKey = 0x11111111;
constexpr size_t kKeyBytes = 108, kVersionBytes = 16, kResults = 5;
constexpr char kVersion[kVersionBytes] = "6.06";
constexpr uint32_t kPsn = 0x654321, kReads = 16, kReceives = 600;
constexpr size_t kRemoteAt = 2 << 20;  // what the other side may use; below is ours

struct Key {
  unsigned reads = 0, qpn = 0, psn = 0, rkey = 0;
  unsigned long long address = 0;
  sockaddr_storage ip{};
};

std::vector<char> text_of(const Key& key) {
  std::vector<char> message(kKeyBytes);
  int at = std::snprintf(message.data(), message.size(), "%04x:%04x:%06x:%06x:%08x:%016llx:", 0,
                         key.reads, key.qpn, key.psn, key.rkey, key.address);
  const std::string gid = gid_text(key.ip);
  for (size_t i = 0; i < gid.size(); i += 2)
    at += std::snprintf(message.data() + at, message.size() - static_cast<size_t>(at),
                        "%c%c:", gid[i], gid[i + 1]);
  std::snprintf(message.data() + at, message.size() - static_cast<size_t>(at), "%08x:", 0);
  return message;
}

Key key_of(const std::vector<char>& message) {
  Key key;
  unsigned lid;
  int at = 0;
  const std::string text(message.data(), message.size() - 1);
  if (std::sscanf(text.c_str(), "%x:%x:%x:%x:%x:%llx:%n", &lid, &key.reads, &key.qpn, &key.psn,
                  &key.rkey, &key.address, &at) != 6 ||
      text.size() < static_cast<size_t>(at) + 48)
    die("not a queue pair: " + text);
  std::string gid;
  for (size_t i = 0; i < 16; i++) gid += text.substr(static_cast<size_t>(at) + 3 * i, 2);
  key.ip = address_of_gid_text(gid);
  return key;
}

Key own_key(Endpoint& endpoint, const Settings& settings) {
  return {
      kReads,          endpoint.qp().number(),         kPsn,
      endpoint.rkey(), endpoint.address_of(kRemoteAt), parse_address(settings.endpoint.address)};
}

void join(Endpoint& endpoint, const Key& peer, uint32_t path_mtu) {
  PathAttributes path;
  path.peer = peer.ip;
  path.destination_qpn = peer.qpn;
  path.send_psn = kPsn;
  path.receive_psn = peer.psn;
  path.path_mtu = path_mtu;
  path.qkey = kQKey;
  endpoint.connect_path(path);
}

// The MTU's code as text, "3" for 1024.
uint32_t mtu_of(const char* text) {
  if (text[0] < '1' || text[0] > '5') die("not a path MTU");
  return 128u << (text[0] - '0');
}

void post_all_receives(Endpoint& endpoint, uint32_t bytes) {
  for (uint64_t n = 0; n < kReceives; n++) endpoint.post_receive(n, 0, bytes);
}

uint64_t word_at(Endpoint& endpoint, size_t offset) {
  uint64_t word;
  std::memcpy(&word, endpoint.memory(offset), sizeof word);
  return word;
}

// Of all words that the other side may change: what its FetchAdds of 1 left, wherever they went.
uint64_t sum_of_words(Endpoint& endpoint, size_t end) {
  uint64_t sum = 0;
  for (size_t at = kRemoteAt; at < end; at += sizeof(uint64_t)) sum += word_at(endpoint, at);
  return sum;
}

}  // namespace

// Whatever the client says is answered with as many bytes: queue pairs with ours, anything else
// with itself, which agrees with every version and every MTU that we have too.
void perftest_server(const Settings& settings) {
  Endpoint endpoint(settings.endpoint);
  endpoint.make_qp(settings.type);
  const sockaddr_storage here = parse_address(settings.endpoint.address);
  const uint32_t receive_bytes = settings.size + (settings.type == QpType::Ud ? kGrhBytes : 0);
  Exchange exchange = Exchange::serve(here, settings.port != 0 ? settings.port : kPort,
                                      settings.endpoint.timeout_ms);
  uint32_t mtu = 0, keys = 0;
  uint64_t received = 0, bytes = 0;
  for (std::vector<char> message; !(message = exchange.read_message()).empty();) {
    if (message.size() == 2) mtu = mtu_of(message.data());
    if (message.size() == kKeyBytes) {
      if (keys++ == 0) {
        join(endpoint, key_of(message), mtu);
        if (settings.verb == "send") post_all_receives(endpoint, receive_bytes);
      }
      message = text_of(own_key(endpoint, settings));
    }
    exchange.write(message.data(), message.size());
    WorkCompletion got;
    while (endpoint.take_received(got)) {
      if (got.status != Status::Success) die(to_string(got.status));
      received++;
      bytes += got.byte_length;
    }
  }
  std::printf(
      "{\"keys\":%u,\"received\":%llu,\"bytes\":%llu,\"sum\":%llu,\"atomics\":%llu}\n", keys,
      static_cast<unsigned long long>(received), static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(sum_of_words(endpoint, settings.endpoint.memory_bytes)),
      static_cast<unsigned long long>(endpoint.counter("soft.responder.atomics")));
}

namespace {

// Both write and read; the client first.
std::vector<char> swap(Exchange& exchange, std::vector<char> message) {
  exchange.write(message.data(), message.size());
  exchange.read(message.data(), message.size());
  return message;
}

// FetchAdd of 1: what was there before must count up. Then CompareSwap from the last value, once
// with what is there and once with what is not.
void run_atomics(Endpoint& endpoint, const Settings& settings, const Key& peer) {
  const auto one = [&](Opcode opcode, uint64_t compare_add, uint64_t swap_in) {
    SendWorkRequest request = endpoint.request(opcode, 0, 8, peer.address, peer.rkey);
    request.atomic = {compare_add, swap_in};
    endpoint.post(request);
    endpoint.wait(false);
    return word_at(endpoint, 0);
  };
  const uint64_t start = one(Opcode::AtomicFetchAdd, 1, 0);
  for (uint32_t i = 1; i < settings.iterations; i++)
    if (one(Opcode::AtomicFetchAdd, 1, 0) != start + i) die("an atomic did not count by one");
  const uint64_t end = start + settings.iterations, mark = 0xfedcba9876543210;
  if (one(Opcode::AtomicCompareSwap, end, mark) != end) die("a compare and swap found other data");
  if (one(Opcode::AtomicCompareSwap, end, 1) != mark) die("a compare and swap was not done");
  if (one(Opcode::AtomicFetchAdd, 0, 0) != mark) die("a compare and swap changed what it must not");
}

// Each server grants only what its test is about: the one cannot read back what it wrote, the other
// compares what it reads with what it read first.
void run_transfers(Endpoint& endpoint, const Settings& settings, const Key& peer) {
  const Opcode opcode = settings.verb == "read" ? Opcode::RdmaRead : Opcode::RdmaWrite;
  for (uint32_t i = 0; i < settings.iterations; i++) {
    const size_t at = i == 0 ? 0 : 1 << 20;
    endpoint.post(endpoint.request(opcode, at, settings.size, peer.address, peer.rkey));
    endpoint.wait(false);
    if (opcode == Opcode::RdmaRead &&
        std::memcmp(endpoint.memory(0), endpoint.memory(at), settings.size) != 0)
      die("an RDMA READ brought other data than before");
  }
}

}  // namespace

void perftest_client(const Settings& settings) {
  Endpoint endpoint(settings.endpoint);
  endpoint.make_qp(settings.type);
  Exchange exchange =
      Exchange::dial(parse_address(settings.host), settings.port != 0 ? settings.port : kPort,
                     settings.endpoint.timeout_ms);
  swap(exchange, {kVersion, kVersion + kVersionBytes});
  swap(exchange, {0, 0, 0, 0});  // size of the cyclic buffer, in network order: the peer's counts
  swap(exchange, {0, 0, 0, 0});  // size of a cache line
  const std::vector<char> mtu = swap(exchange, {'3', 0});
  const std::vector<char> own = text_of(own_key(endpoint, settings));
  const Key peer = key_of(swap(exchange, own));
  join(endpoint, peer, std::min(1024u, mtu_of(mtu.data())));
  swap(exchange, own);  // both are ready
  swap(exchange, own);  // and once more, to print it
  if (settings.verb == "atomic")
    run_atomics(endpoint, settings, peer);
  else
    run_transfers(endpoint, settings, peer);
  swap(exchange, own);
  for (size_t i = 0; i < kResults; i++) swap(exchange, std::vector<char>(8));
  swap(exchange, own);
  std::printf("{\"operations\":%u}\n", settings.iterations);
}

}  // namespace nvmeof::peer
