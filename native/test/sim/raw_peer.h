// A peer made by hand: sends any packet to one queue pair and sees every packet that comes back.
#pragma once
#include "rdma/soft/icrc.h"
#include "rdma/soft/packet.h"
#include "sim/network.h"

namespace nvmeof::test::sim {

class RawPeer {
 public:
  static constexpr uint32_t kQpn = 0x2222, kPsn = 0xfffffa;  // its PSNs wrap soon

  explicit RawPeer(const ConnectOptions& options = {}, const soft::TransportConfig& config = {},
                   size_t memory_bytes = 1 << 20)
      : network(1), node(network, "10.0.0.1", 5, config, memory_bytes) {
    network.filter = [this](Node&, std::vector<uint8_t>& bytes) {
      out.push_back(bytes);
      return false;
    };
    source = soft::with_port(address("10.0.0.2"), 0xd000);
    for (size_t i = 0; i < node.memory.size(); i++) node.memory[i] = static_cast<uint8_t>(i * 13);
    renew(options);
  }

  // A fresh queue pair in RTS in place of the old one.
  void renew(const ConnectOptions& options, SharedReceiveQueue* srq = nullptr,
             QpType type = QpType::Rc) {
    qp.reset();
    node.poll();
    node.flows.clear();
    node.errors.clear();
    node.established.clear();
    out.clear();
    qp = node.make_qp(64, 4, srq, type);
    ready = static_cast<bool>(bring_up(node, *qp, address("10.0.0.2"), kQpn, 100, kPsn, options));
  }

  // A packet to the queue pair; the caller fills in the rest.
  soft::Packet packet(soft::PacketOpcode opcode, uint32_t psn,
                      const std::vector<uint8_t>& payload) {
    soft::Packet p;
    p.row = &soft::row_of(opcode);
    p.dest_qpn = qp->number();
    p.psn = psn & 0xffffff;
    p.pad = static_cast<uint8_t>(soft::pad_bytes(static_cast<uint32_t>(payload.size())));
    kept = payload;
    p.payload = kept.data();
    p.payload_length = static_cast<uint32_t>(kept.size());
    return p;
  }
  std::vector<uint8_t> bytes_of(const soft::Packet& p) {
    std::vector<uint8_t> bytes(soft::packet_bytes(*p.row, p.payload_length) + 8);
    bytes.resize(soft::encode(p, bytes) + soft::kIcrcBytes);
    seal(bytes);
    return bytes;
  }
  void seal(std::vector<uint8_t>& bytes) {
    const soft::Flow flow = soft::make_flow(source, node.self);
    soft::icrc_append(flow, bytes.data(), static_cast<uint32_t>(bytes.size()), 9);
  }
  void feed_bytes(const std::vector<uint8_t>& bytes) {
    const soft::Arrival arrival{
        &source, &node.self, bytes.data(), static_cast<uint32_t>(bytes.size()), 9, 0};
    node.transport.receive(arrival, network.now);
  }
  void feed(const soft::Packet& p) { feed_bytes(bytes_of(p)); }

  soft::Packet send(uint32_t psn, size_t length, soft::PacketOpcode opcode) {
    return packet(opcode, psn, std::vector<uint8_t>(length, 0xab));
  }
  soft::Packet write(uint32_t psn, soft::PacketOpcode opcode, uint64_t offset, uint32_t total,
                     size_t length) {
    soft::Packet p = packet(opcode, psn, std::vector<uint8_t>(length, 0xcd));
    p.reth = {node.at(offset), node.region->rkey(), total};
    return p;
  }
  soft::Packet read(uint32_t psn, uint64_t offset, uint32_t length) {
    soft::Packet p = packet(soft::PacketOpcode::ReadRequest, psn, {});
    p.reth = {node.at(offset), node.region->rkey(), length};
    return p;
  }
  soft::Packet atomic(uint32_t psn, soft::PacketOpcode opcode, uint64_t offset,
                      uint64_t swap_or_add, uint64_t compare = 0) {
    soft::Packet p = packet(opcode, psn, {});
    p.atomic = {node.at(offset), swap_or_add, compare, node.region->rkey()};
    return p;
  }
  soft::Packet atomic_ack(uint32_t psn, uint64_t original) {
    soft::Packet p = packet(soft::PacketOpcode::AtomicAcknowledge, psn, {});
    p.aeth.syndrome = soft::kSyndromeAck;
    p.atomic_original = original;
    return p;
  }
  soft::Packet ack(uint32_t psn, uint8_t syndrome = soft::kSyndromeAck) {
    soft::Packet p = packet(soft::PacketOpcode::Acknowledge, psn, {});
    p.aeth.syndrome = syndrome;
    return p;
  }
  soft::Packet response(uint32_t psn, soft::PacketOpcode opcode, size_t length, uint8_t fill) {
    soft::Packet p = packet(opcode, psn, std::vector<uint8_t>(length, fill));
    p.aeth.syndrome = soft::kSyndromeAck;
    return p;
  }

  // What left since the last call.
  std::vector<soft::Packet> answers() {
    node.transport.transmit(network.now);
    shown = std::move(out);
    out.clear();
    std::vector<soft::Packet> parsed(shown.size());
    for (size_t i = 0; i < shown.size(); i++)
      if (soft::parse(shown[i], parsed[i]) != soft::PacketFault::None) parsed[i].row = nullptr;
    return parsed;
  }
  bool post(Opcode opcode, uint64_t offset, uint32_t length, uint8_t flags = kSignaled) {
    const Sge sge = node.sge(offset, length);
    SendWorkRequest wr{};
    wr.wr_id = ++posted;
    wr.opcode = opcode;
    wr.flags = flags;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.remote_address = 0x10000;
    wr.rkey = 0x55;
    return static_cast<bool>(qp->post_send({&wr, 1}));
  }
  bool post_receive(uint64_t offset, uint32_t length, uint64_t id = 1) {
    const Sge sge = node.sge(offset, length);
    const ReceiveWorkRequest wr{id, 1, &sge};
    return static_cast<bool>(qp->post_receive({&wr, 1}));
  }

  Network network;
  Node node;
  std::unique_ptr<soft::QueuePair> qp;
  sockaddr_storage source{};
  bool ready = false;
  uint64_t posted = 0;
  std::vector<std::vector<uint8_t>> out, shown;
  std::vector<uint8_t> kept;
};

}  // namespace nvmeof::test::sim
