// The rig's engine and its raw hosts.
#include "support/target_rig.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "test.h"

namespace nvmeof::test {

using namespace rdma;

size_t EventCollector::count(EventKind kind) const {
  return static_cast<size_t>(
      std::count_if(events.begin(), events.end(), [&](const Event& e) { return e.kind == kind; }));
}

const Event* EventCollector::last(EventKind kind) const {
  for (auto event = events.rbegin(); event != events.rend(); ++event)
    if (event->kind == kind) return &*event;
  return nullptr;
}

// ---- SQE

namespace {

void put(uint8_t* to, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) to[i] = static_cast<uint8_t>(value >> (8 * i));
}

}  // namespace

Sqe::Sqe(uint8_t opcode, uint16_t cid, uint32_t nsid) {
  bytes[0] = opcode;
  bytes[1] = 0x40;
  put(&bytes[2], cid, 2);
  put(&bytes[4], nsid, 4);
  bytes[39] = 0x40;
}

Sqe& Sqe::range(uint64_t slba, uint32_t blocks) {
  put(&bytes[40], slba, 8);
  put(&bytes[48], blocks - 1, 2);
  return *this;
}

Sqe& Sqe::keyed(uint64_t address, uint32_t length, uint32_t key, uint8_t type) {
  put(&bytes[24], address, 8);
  put(&bytes[32], length, 3);
  put(&bytes[35], key, 4);
  bytes[39] = type;
  return *this;
}

Sqe& Sqe::in_capsule(uint64_t offset, uint32_t length) {
  put(&bytes[24], offset, 8);
  put(&bytes[32], length, 4);
  put(&bytes[36], 0, 3);
  bytes[39] = 0x01;
  return *this;
}

Sqe& Sqe::dword(unsigned offset, uint32_t value) {
  put(&bytes[offset], value, 4);
  return *this;
}

Sqe& Sqe::byte(unsigned offset, uint8_t value) {
  bytes[offset] = value;
  return *this;
}

// ---- raw host

class RawHost::Handler : public ConnectionHandler {
 public:
  explicit Handler(RawHost* host) : host_(host) {}
  void on_connect_request(const ConnectRequest&) override {}
  void on_connect_response(ConnectionId, const ConnectResponse&) override {
    host_->connected = true;
  }
  void on_connect_failed(ConnectionId, const ConnectFailed&) override { host_->failed = true; }
  void on_established(ConnectionId) override {}
  void on_disconnected(ConnectionId, const std::string&) override { host_->disconnected = true; }

 private:
  RawHost* host_;
};

RawHost::RawHost(TargetRig* rig, uint32_t queue_id, uint32_t depth, size_t memory_bytes)
    : memory(memory_bytes),
      queue(queue_id),
      rig_(rig),
      handler_(std::make_unique<Handler>(this)),
      receives_(2 * depth),
      capsule_bytes_(64 + rig->limits.in_capsule_bytes + 64),
      send_slots_(4 * depth) {
  LoopbackDevice& device = *rig->host_device;
  pd_ = std::move(*device.allocate_pd());
  cq_ = std::move(*device.create_cq(8 * depth + 64));
  region_ = std::move(*pd_->register_memory(
      memory.data(), memory.size(), kLocalWrite | kRemoteRead | kRemoteWrite | kWindowBind));
  capsules_.resize(size_t{receives_} * 16 + size_t{send_slots_} * capsule_bytes_);
  capsules_region_ =
      std::move(*pd_->register_memory(capsules_.data(), capsules_.size(), kLocalWrite));
  QueuePairOptions options;
  options.pd = pd_.get();
  options.send_cq = options.receive_cq = cq_.get();
  options.max_send_wr = send_slots_;
  options.max_receive_wr = receives_;
  qp = std::move(*device.create_qp(options));
  for (uint32_t i = 0; i < receives_; i++) post_receive(i);
  const uint8_t private_data[32] = {};
  ConnectionParameters parameters;
  parameters.private_data = private_data;
  connection_ =
      *device.connect(rig->target_device->address(), 4420, qp.get(), parameters, handler_.get());
  rig->hosts.push_back(this);
  rig->settle();
  const Event* request = rig->sink.last(EventKind::ConnectRequest);
  if (!request) return;
  nvmf::AcceptOptions accept{depth, rig->limits.in_capsule_bytes, {}};
  if (!rig->engine->accept(queue, request->value, accept)) std::abort();
  rig->settle();
}

RawHost::~RawHost() {
  std::erase(rig_->hosts, this);
  rig_->host_device->abandon(connection_);
  qp.reset();
}

uint32_t RawHost::target_qp() const {
  return rig_->fabric.peer_of(qp->number());
}

void RawHost::post_receive(uint32_t index) {
  const Sge sge{reinterpret_cast<uint64_t>(capsules_.data() + size_t{index} * 16), 16,
                capsules_region_->lkey()};
  const ReceiveWorkRequest request{index, 1, &sge};
  if (!qp->post_receive({&request, 1})) std::abort();
}

void RawHost::send(const Sqe& sqe, std::span<const uint8_t> data) {
  std::vector<uint8_t> capsule(sqe.bytes.begin(), sqe.bytes.end());
  capsule.insert(capsule.end(), data.begin(), data.end());
  send_bytes(capsule);
}

void RawHost::send_bytes(std::span<const uint8_t> capsule) {
  uint8_t* at =
      capsules_.data() + size_t{receives_} * 16 + size_t{sends_++ % send_slots_} * capsule_bytes_;
  const size_t length = std::min<size_t>(capsule.size(), capsule_bytes_);
  if (length) std::memcpy(at, capsule.data(), length);
  const Sge sge{reinterpret_cast<uint64_t>(at), static_cast<uint32_t>(length),
                capsules_region_->lkey()};
  SendWorkRequest request{};
  request.wr_id = ~0ull;
  request.opcode = Opcode::Send;
  request.flags = kSignaled;
  request.num_sge = 1;
  request.sg_list = &sge;
  (void)qp->post_send({&request, 1});  // a dead queue pair refuses, which the test sees elsewhere
}

Answer RawHost::ask(const Sqe& sqe, std::span<const uint8_t> data) {
  const size_t before = answers.size();
  send(sqe, data);
  rig_->settle();
  if (answers.size() == before) return {0, 0, 0, 0, 0xFFFF, 0};
  return answers.back();
}

const Answer* RawHost::answer(uint16_t cid) const {
  for (auto answer = answers.rbegin(); answer != answers.rend(); ++answer)
    if (answer->cid == cid) return &*answer;
  return nullptr;
}

void RawHost::poll() {
  WorkCompletion completions[16];
  for (int count; (count = cq_->poll(completions)) > 0;) {
    for (int i = 0; i < count; i++) {
      const WorkCompletion& wc = completions[i];
      if (!wc.receive || wc.status != Status::Success) continue;
      const uint8_t* cqe = capsules_.data() + wc.wr_id * 16;
      CHECK_EQ(wc.byte_length, 16u);
      CHECK_EQ(cqe[14] & 1, 0);  // no phase bit on fabrics
      answers.push_back({nvmf::load64(cqe), nvmf::load16(cqe + 8), nvmf::load16(cqe + 10),
                         nvmf::load16(cqe + 12), static_cast<uint16_t>(nvmf::load16(cqe + 14) >> 1),
                         wc.flags & kWithInvalidate ? wc.imm_or_rkey : 0});
      post_receive(static_cast<uint32_t>(wc.wr_id));
    }
  }
}

void RawHost::disconnect() {
  rig_->host_device->disconnect(connection_);
}

uint32_t RawHost::bind_window(uint64_t offset, uint64_t length) {
  windows_.push_back(std::move(*pd_->allocate_window()));
  SendWorkRequest request{};
  request.wr_id = ~0ull;
  request.opcode = Opcode::BindMemoryWindow;
  request.bind = {windows_.back().get(),
                  region_.get(),
                  address(offset),
                  length,
                  windows_.back()->next_rkey(),
                  kRemoteRead | kRemoteWrite};
  if (!qp->post_send({&request, 1})) std::abort();
  return request.bind.rkey;
}

// ---- rig

nvmf::TargetLimits TargetRig::small_limits() {
  nvmf::TargetLimits limits;
  limits.arena_bytes = 2u << 20;
  limits.shared_receives = 64;
  limits.in_capsule_bytes = 4096;
  limits.max_transfer_bytes = 256 * 1024;
  return limits;
}

TargetRig::TargetRig(nvmf::TargetLimits with, const Capabilities& target) : limits(with) {
  fabric.progress_on_poll = false;
  target_device = fabric.open("10.0.0.1", target);
  host_device = fabric.open("10.0.0.2", LoopbackFabric::full_capabilities());
  auto created = nvmf::TargetEngine::create(target_device.get(), nullptr, &sink, limits);
  if (!created) {
    std::fprintf(stderr, "no engine: %s\n", created.error().message.c_str());
    std::abort();
  }
  engine = std::move(*created);
  if (!target_device->listen(4420, engine.get())) std::abort();
}

TargetRig::~TargetRig() = default;

void TargetRig::settle() {
  for (int quiet = 0; quiet < 3;) {
    int work = fabric.progress();
    work += engine->poll(now);
    for (RawHost* host : hosts) host->poll();
    quiet = work > 0 ? 0 : quiet + 1;
  }
}

void TargetRig::add_namespace(uint32_t nsid, block::Backing* backing, bool write_protected,
                              uint32_t max_transfer) {
  static bool done;
  done = false;
  engine->set_namespace(
      1, nsid, {backing, write_protected, max_transfer},
      [](void* context) { *static_cast<bool*>(context) = true; }, &done);
  settle();
  CHECK(done);
}

void TargetRig::bind(const RawHost& host, bool flow_control_disabled) {
  engine->bind(host.queue, {1, 1, 1, flow_control_disabled});
}

uint64_t TargetRig::counter(const char* name) {
  for (const CounterValue& value : engine->counters())
    if (std::strcmp(value.name, name) == 0) return value.value;
  std::fprintf(stderr, "no counter %s\n", name);
  std::abort();
}

void TargetRig::check_idle() {
  settle();
  CHECK_EQ(counter("live.targetCommands"), 0u);
  CHECK_EQ(counter("live.targetBuffers"), 0u);
  CHECK_EQ(counter("live.targetReceives"), 0u);
}

}  // namespace nvmeof::test
