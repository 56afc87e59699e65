// ScriptedTarget: accepting, taking capsules in, moving data, answering.
#include "support/scripted_target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nvmf/nvme.h"

namespace nvmeof::test {

using namespace nvmf;

namespace {

constexpr uint32_t kScratch = 2u << 20;
constexpr uint32_t kLbaBytes = 512;

template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "scripted target: %s\n", result.error().message.c_str());
    std::abort();
  }
  return std::move(*result);
}

}  // namespace

ScriptedTarget::ScriptedTarget(LoopbackFabric* fabric, const char* address)
    : fabric_(fabric),
      device_(fabric->open(address, LoopbackFabric::full_capabilities())),
      pd_(must(device_->allocate_pd())),
      receive_cq_(must(device_->create_cq(1 << 16))),
      send_cq_(must(device_->create_cq(1 << 16))),
      scratch_(kScratch),
      scratch_region_(must(pd_->register_memory(scratch_.data(), kScratch, rdma::kLocalWrite))) {
  must(device_->listen(kPort, this));
}

ScriptedTarget::~ScriptedTarget() {
  for (const auto& connection : connections) device_->abandon(connection->id);
  connections.clear();
}

void ScriptedTarget::on_connect_request(const rdma::ConnectRequest& request) {
  if (answer == Answer::Ignore) return;
  if (answer == Answer::Reject) {
    device_->reject(request.id, 28, private_data);
    return;
  }
  auto connection = std::make_unique<Connection>();
  connection->id = request.id;
  connection->request_data.assign(request.private_data.begin(), request.private_data.end());
  connection->receives.resize(size_t{receives_per_queue} * kCapsuleBytes);
  connection->region = must(pd_->register_memory(connection->receives.data(),
                                                 connection->receives.size(), rdma::kLocalWrite));
  rdma::QueuePairOptions options;
  options.pd = pd_.get();
  options.send_cq = send_cq_.get();
  options.receive_cq = receive_cq_.get();
  options.max_send_wr = 1024;
  options.max_receive_wr = receives_per_queue;
  options.context = reinterpret_cast<void*>(connections.size());
  connection->qp = must(device_->create_qp(options));
  for (uint32_t i = 0; i < receives_per_queue; i++) post_receive(*connection, i);
  rdma::ConnectionParameters parameters;
  parameters.initiator_depth = 16;
  parameters.private_data = private_data;
  const bool accepted = bool(device_->accept(request.id, connection->qp.get(), parameters));
  if (accepted) connections.push_back(std::move(connection));
}

void ScriptedTarget::on_disconnected(rdma::ConnectionId id, const std::string&) {
  for (const auto& connection : connections) {
    if (connection->id == id) connection->disconnected = true;
  }
}

void ScriptedTarget::post_receive(Connection& connection, uint32_t index) {
  const rdma::Sge sge{
      reinterpret_cast<uintptr_t>(connection.receives.data()) + size_t{index} * kCapsuleBytes,
      kCapsuleBytes, connection.region->lkey()};
  const rdma::ReceiveWorkRequest request{index, 1, &sge};
  (void)connection.qp->post_receive({&request, 1});
}

void ScriptedTarget::progress() {
  fabric_->settle();
  rdma::WorkCompletion completions[64];
  while (const int count = receive_cq_->poll(completions)) {
    for (int i = 0; i < count; i++) {
      const rdma::WorkCompletion& wc = completions[i];
      if (wc.status != rdma::Status::Success) continue;
      const auto index = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(wc.qp_context));
      Connection& connection = *connections[index];
      take(index, connection.receives.data() + wc.wr_id * kCapsuleBytes, wc.byte_length);
      post_receive(connection, static_cast<uint32_t>(wc.wr_id));
    }
  }
  while (send_cq_->poll(completions) > 0) {
  }
}

void ScriptedTarget::take(uint32_t connection, const uint8_t* bytes, uint32_t length) {
  Capsule capsule{};
  capsule.connection = connection;
  std::memcpy(capsule.sqe, bytes, std::min<size_t>(length, kSqeBytes));
  if (length > kSqeBytes) capsule.data.assign(bytes + kSqeBytes, bytes + length);
  const uint8_t* sqe = capsule.sqe;
  capsule.cid = load16(sqe + sqe::kCid);
  capsule.sgl_type = sqe[sqe::kSglType];
  capsule.address = load64(sqe + sqe::kSglAddress);
  capsule.length = load32(sqe + sqe::kSglLength) & 0xFFFFFF;
  capsule.key = load32(sqe + sqe::kSglKey);
  capsules.push_back(std::move(capsule));
  uint64_t waiting = 0;
  for (const Capsule& c : capsules) {
    if (c.sqe[sqe::kOpcode] == io::kRead && c.sgl_type != kSglInCapsule) waiting += c.length;
  }
  read_bytes_waiting_max = std::max(read_bytes_waiting_max, waiting);
}

void ScriptedTarget::send(uint32_t connection, const std::vector<uint8_t>& bytes, uint32_t key) {
  std::copy(bytes.begin(), bytes.end(), scratch_.begin());
  const rdma::Sge sge{reinterpret_cast<uintptr_t>(scratch_.data()),
                      static_cast<uint32_t>(bytes.size()), scratch_region_->lkey()};
  rdma::SendWorkRequest request{};
  request.opcode = key != 0 ? rdma::Opcode::SendWithInvalidate : rdma::Opcode::Send;
  request.flags = rdma::kSignaled;
  request.num_sge = 1;
  request.sg_list = &sge;
  request.imm_or_rkey = key;
  (void)connections[connection]->qp->post_send({&request, 1});
  fabric_->settle();  // `scratch_` is free again
}

std::vector<uint8_t> ScriptedTarget::cqe(uint16_t cid, uint16_t status, uint64_t result) {
  std::vector<uint8_t> bytes(kCqeBytes);
  store64(bytes.data() + cqe::kResult, result);
  store16(bytes.data() + cqe::kCid, cid);
  store16(bytes.data() + cqe::kStatus, static_cast<uint16_t>(status << 1));
  return bytes;
}

void ScriptedTarget::respond(const Capsule& capsule, uint16_t status, bool invalidate) {
  const bool keyed = capsule.sgl_type == kSglKeyedInvalidate;
  send(capsule.connection, cqe(capsule.cid, status), invalidate && keyed ? capsule.key : 0);
}

bool ScriptedTarget::transfer(uint32_t connection, rdma::Opcode opcode, uint64_t address,
                              uint32_t key, uint8_t* bytes, size_t length) {
  const bool write = opcode == rdma::Opcode::RdmaWrite;
  if (write) std::memcpy(scratch_.data(), bytes, length);
  const rdma::Sge sge{reinterpret_cast<uintptr_t>(scratch_.data()), static_cast<uint32_t>(length),
                      scratch_region_->lkey()};
  rdma::SendWorkRequest request{};
  request.opcode = opcode;
  request.flags = rdma::kSignaled;
  request.num_sge = 1;
  request.sg_list = &sge;
  request.remote_address = address;
  request.rkey = key;
  rdma::QueuePair& qp = *connections[connection]->qp;
  (void)qp.post_send({&request, 1});
  fabric_->settle();
  if (!write) std::memcpy(bytes, scratch_.data(), length);
  return qp.state() == rdma::State::Rts;
}

bool ScriptedTarget::write_host(const Capsule& capsule, const std::vector<uint8_t>& data,
                                uint64_t offset) {
  return transfer(capsule.connection, rdma::Opcode::RdmaWrite, capsule.address + offset,
                  capsule.key, const_cast<uint8_t*>(data.data()), data.size());
}

bool ScriptedTarget::read_host(const Capsule& capsule, std::vector<uint8_t>* data, uint64_t extra) {
  data->resize(capsule.length + extra);
  return transfer(capsule.connection, rdma::Opcode::RdmaRead, capsule.address, capsule.key,
                  data->data(), data->size());
}

void ScriptedTarget::serve(const Capsule& capsule) {
  const uint64_t begin = load64(capsule.sqe + sqe::kCdw10) * kLbaBytes;
  const uint64_t length = (uint64_t{load16(capsule.sqe + sqe::kCdw12)} + 1) * kLbaBytes;
  const uint64_t served = reads_served + writes_served + failed++;
  if (length > memory.size() || begin > memory.size() - length) {
    respond(capsule, 0x80);  // LBA Out of Range
    return;
  }
  if (fail_every != 0 && served % fail_every == fail_every - 1) {
    respond(capsule, fail_status);
    return;
  }
  failed--;
  if (capsule.sqe[sqe::kOpcode] == io::kRead) {
    reads_served++;
    write_host(capsule, {memory.begin() + static_cast<ptrdiff_t>(begin),
                         memory.begin() + static_cast<ptrdiff_t>(begin + length)});
  } else {
    writes_served++;
    std::vector<uint8_t> data = capsule.data;
    if (capsule.sgl_type == kSglInCapsule) {
      in_capsule_writes++;
    } else {
      read_host(capsule, &data);
    }
    const bool lost = lose_write_every != 0 && writes_served % lose_write_every == 0;
    if (!lost)
      std::memcpy(memory.data() + begin, data.data(), std::min<size_t>(length, data.size()));
  }
  respond(capsule);
}

int ScriptedTarget::poll(reactor::TimeNs) {
  progress();
  int served = 0;
  if (silent) return served;
  // Those that are here now; answers may bring new ones.
  for (size_t count = capsules.size(); count > 0; count--, served++) {
    const Capsule capsule = std::move(capsules.front());
    capsules.pop_front();
    serve(capsule);
  }
  return served;
}

}  // namespace nvmeof::test
