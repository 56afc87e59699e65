// ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong: one message to and fro, each side sending
// the same bytes. The addresses travel over TCP as "lid:qpn:psn:gid" in hexadecimal.
#include <cstdio>
#include <cstring>

#include "peer/exchange.h"
#include "peer/programs.h"

namespace nvmeof::peer {

using namespace rdma;

namespace {

constexpr uint16_t kPort = 18515;
constexpr uint32_t kQKey = 0x11111111;
constexpr uint8_t kFill = 0x7b;  // what those programs send
constexpr size_t kAddressBytes = sizeof "0000:000000:000000:00000000000000000000000000000000";
constexpr uint32_t kReceives = 16;

struct Address {
  uint32_t qpn = 0, psn = 0;
  sockaddr_storage ip{};
};

void tell(Exchange& exchange, const Address& own) {
  char message[kAddressBytes];
  std::snprintf(message, sizeof message, "%04x:%06x:%06x:%s", 0, own.qpn, own.psn,
                gid_text(own.ip).c_str());
  exchange.write(message, sizeof message);
}

Address hear(Exchange& exchange) {
  char message[kAddressBytes], gid[33];
  exchange.read(message, sizeof message);
  message[sizeof message - 1] = 0;
  unsigned lid;
  Address peer;
  if (std::sscanf(message, "%x:%x:%x:%32s", &lid, &peer.qpn, &peer.psn, gid) != 4)
    die(std::string("not an address: ") + message);
  peer.ip = address_of_gid_text(gid);
  return peer;
}

void join(Endpoint& endpoint, const Settings& settings, const Address& own, const Address& peer) {
  PathAttributes path;
  path.peer = peer.ip;
  path.destination_qpn = peer.qpn;
  path.send_psn = own.psn;
  path.receive_psn = peer.psn;
  path.path_mtu = settings.type == QpType::Ud ? 0 : 1024;
  path.qkey = kQKey;
  endpoint.connect_path(path);
  if (settings.type == QpType::Ud) endpoint.reach(peer.ip, peer.qpn, kQKey);
}

}  // namespace

void pingpong(const Settings& settings, bool server) {
  const uint16_t port = settings.port != 0 ? settings.port : kPort;
  const uint32_t front = settings.type == QpType::Ud ? kGrhBytes : 0;
  const size_t slot = front + settings.size;
  EndpointOptions options = settings.endpoint;
  options.memory_bytes = slot * (kReceives + 1);
  Endpoint endpoint(options);
  endpoint.make_qp(settings.type);
  std::memset(endpoint.memory(), kFill, settings.size);
  const auto post_receive = [&](uint64_t n) {
    endpoint.post_receive(n, slot * (n + 1), static_cast<uint32_t>(slot));
  };
  const sockaddr_storage here = parse_address(options.address);
  const Address own{endpoint.qp().number(), 0x123456, here};
  {
    Exchange exchange =
        server ? Exchange::serve(here, port, options.timeout_ms)
               : Exchange::dial(parse_address(settings.host), port, options.timeout_ms);
    if (!server) tell(exchange, own);
    const Address peer = hear(exchange);
    join(endpoint, settings, own, peer);
    for (uint64_t n = 0; n < kReceives; n++) post_receive(n);
    if (server) tell(exchange, own);
    char done[] = "done";
    server ? exchange.read(done, sizeof done) : exchange.write(done, sizeof done);
  }
  const auto send = [&] {
    endpoint.post(endpoint.request(Opcode::Send, 0, settings.size));
    endpoint.wait(false);
  };
  for (uint32_t i = 0; i < settings.iterations; i++) {
    if (!server) send();
    const WorkCompletion got = endpoint.wait(true);
    const uint8_t* const data = endpoint.memory(slot * (got.wr_id + 1) + front);
    if (got.byte_length != slot) die("a message of a wrong length");
    for (uint32_t k = 0; k < settings.size; k++)
      if (data[k] != kFill) die("wrong data");
    std::memset(endpoint.memory(slot * (got.wr_id + 1)), 0, slot);
    post_receive(got.wr_id);
    if (server) send();
  }
  std::printf("{\"exchanges\":%u,\"bytes\":%u}\n", settings.iterations, settings.size);
}

}  // namespace nvmeof::peer
