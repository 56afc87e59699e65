// rping: the client names a buffer, the server fetches it by RDMA READ, the client names another,
// and the server puts the same bytes there by RDMA WRITE. Connected by rdma_cm.
#include <cstdio>
#include <cstring>

#include "peer/programs.h"
#include "rdma/soft/packet.h"

namespace nvmeof::peer {

using namespace rdma;
using soft::get32;
using soft::get64;
using soft::put32;
using soft::put64;

namespace {

constexpr uint16_t kPort = 7174;
// The message of both directions: address, rkey and length of a buffer.
constexpr uint32_t kInfoBytes = 16;
constexpr size_t kSendAt = 0, kReceiveAt = 64, kDataAt = 4096;

struct Info {
  uint64_t address;
  uint32_t rkey, length;
};

Info info_at(Endpoint& endpoint, const WorkCompletion& got) {
  if (got.byte_length != kInfoBytes) die("a message of a wrong length");
  const uint8_t* const p = endpoint.memory(kReceiveAt);
  return {get64(p), get32(p + 8), get32(p + 12)};
}

void send_info(Endpoint& endpoint, const Info& info) {
  uint8_t* const p = endpoint.memory(kSendAt);
  put64(p, info.address);
  put32(p + 8, info.rkey);
  put32(p + 12, info.length);
  endpoint.post(endpoint.request(Opcode::Send, kSendAt, kInfoBytes));
  endpoint.wait(false);
}

}  // namespace

void rping_server(const Settings& settings) {
  Endpoint endpoint(settings.endpoint);
  endpoint.make_qp(QpType::Rc, true);
  const auto receive = [&] { endpoint.post_receive(1, kReceiveAt, kInfoBytes); };
  receive();  // before the client can send: it does not repeat what finds no receive
  endpoint.accept_one(settings.port != 0 ? settings.port : kPort);
  uint32_t rounds = 0;
  WorkCompletion got;
  while (endpoint.wait(true, got)) {
    const Info source = info_at(endpoint, got);
    receive();
    if (source.length > settings.endpoint.memory_bytes - kDataAt) die("a buffer too large");
    endpoint.post(
        endpoint.request(Opcode::RdmaRead, kDataAt, source.length, source.address, source.rkey));
    endpoint.wait(false);
    send_info(endpoint, {});
    const Info sink = info_at(endpoint, endpoint.wait(true));
    receive();
    if (sink.length > source.length) die("a buffer too large");
    endpoint.post(
        endpoint.request(Opcode::RdmaWrite, kDataAt, sink.length, sink.address, sink.rkey));
    endpoint.wait(false);
    send_info(endpoint, {});
    rounds++;
  }
  std::printf("{\"rounds\":%u}\n", rounds);
}

void rping_client(const Settings& settings) {
  Endpoint endpoint(settings.endpoint);
  endpoint.make_qp(QpType::Rc);
  const size_t sink = kDataAt + settings.size;
  if (sink + settings.size > settings.endpoint.memory_bytes) die("a size too large");
  endpoint.connect(parse_address(settings.host), settings.port != 0 ? settings.port : kPort);
  const auto receive = [&] { endpoint.post_receive(1, kReceiveAt, kInfoBytes); };
  receive();
  for (uint32_t round = 0; round < settings.iterations; round++) {
    // A text: the server writes as much as it takes for one.
    for (uint32_t i = 0; i + 1 < settings.size; i++)
      *endpoint.memory(kDataAt + i) = static_cast<uint8_t>('A' + (i + round) % 58);
    *endpoint.memory(kDataAt + settings.size - 1) = 0;
    std::memset(endpoint.memory(sink), 0, settings.size);
    send_info(endpoint, {endpoint.address_of(kDataAt), endpoint.rkey(), settings.size});
    endpoint.wait(true);
    receive();
    send_info(endpoint, {endpoint.address_of(sink), endpoint.rkey(), settings.size});
    endpoint.wait(true);
    receive();
    if (std::memcmp(endpoint.memory(kDataAt), endpoint.memory(sink), settings.size) != 0)
      die("wrong data");
  }
  endpoint.disconnect();
  std::printf("{\"rounds\":%u}\n", settings.iterations);
}

}  // namespace nvmeof::peer
