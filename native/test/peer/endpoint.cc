#include "peer/endpoint.h"

#include <arpa/inet.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nvmeof::peer {

using namespace rdma;

namespace {

// What a peer may have outstanding toward us, and we toward it.
constexpr uint8_t kReads = 16;
// 1.07 s: the other program may run in an emulated machine, which stands still at times.
constexpr uint32_t kAckTimeout = 18;

}  // namespace

void die(const std::string& what) {
  std::fprintf(stderr, "rdma_peer: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

sockaddr_storage parse_address(const std::string& text) {
  sockaddr_storage storage{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1)
    v4.sin_family = AF_INET;
  else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1)
    v6.sin6_family = AF_INET6;
  else
    die("\"" + text + "\" is not an IP address");
  return storage;
}

Endpoint::Endpoint(const EndpointOptions& options)
    : options_(options), memory_(options.memory_bytes) {
  reactor_ = need(reactor::Reactor::start(0, {}));
  DeviceOptions device;
  device.provider = "soft";
  device.address = parse_address(options.address);
  device.path_mtu = options.path_mtu;
  device.pcap_path = options.pcap;
  device.local_ack_timeout = kAckTimeout;
  reactor::Reactor* const reactors[] = {reactor_.get()};
  device_ = need(open_device(device, reactors));
  pd_ = need(device_->allocate_pd());
  region_ = need(pd_->register_memory(memory_.data(), memory_.size(),
                                      kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic));
  run([&] {
    cq_ = need(device_->create_cq(options_.depth * 4));
    reactor_->add(this, reactor::Stage::Process);
  });
}

Endpoint::~Endpoint() {
  run([&] {
    if (connection_ != 0) device_->abandon(connection_);
    reactor_->remove(this);
    qp_.reset();
    address_handle_.reset();
    srq_.reset();
    cq_.reset();
  });
  region_.reset();
  pd_.reset();
  device_.reset();
}

void Endpoint::make_qp(QpType type, bool shared_receives) {
  QueuePairOptions options;
  options.pd = pd_.get();
  options.max_send_wr = options.max_receive_wr = options_.depth;
  options.type = type;
  run([&] {
    options.send_cq = options.receive_cq = cq_.get();
    if (shared_receives) srq_ = need(device_->create_srq(pd_.get(), options_.depth, 1));
    options.srq = srq_.get();
    qp_ = need(device_->create_qp(options));
  });
}

uint64_t Endpoint::counter(const std::string& name) const {
  for (const CounterValue& value : device_->counters())
    if (name == value.name) return value.value;
  die("no counter " + name);
}

// ---- Connections

void Endpoint::connect_path(const PathAttributes& attributes) {
  PathAttributes path = attributes;
  path.responder_resources = path.initiator_depth = kReads;
  run([&] { need(device_->connect_path(qp_.get(), path)); });
}

void Endpoint::reach(const sockaddr_storage& peer, uint32_t remote_qpn, uint32_t remote_qkey) {
  remote_qpn_ = remote_qpn;
  remote_qkey_ = remote_qkey;
  run([&] { address_handle_ = need(device_->create_address_handle(pd_.get(), peer)); });
}

void Endpoint::connect(const sockaddr_storage& peer, uint16_t port) {
  ConnectionParameters parameters;
  parameters.responder_resources = parameters.initiator_depth = kReads;
  run([&] { connection_ = need(device_->connect(peer, port, qp_.get(), parameters, this)); });
  wait_for_link();
}

void Endpoint::accept_one(uint16_t port) {
  uint32_t listener = 0;
  run([&] { listener = need(device_->listen(port, this)); });
  std::printf("listening\n");
  std::fflush(stdout);
  wait_for_link();
  run([&] { device_->unlisten(listener); });
}

void Endpoint::on_connect_request(const ConnectRequest& request) {
  if (connection_ != 0) {
    device_->reject(request.id, 28, {});  // consumer defined: one connection only
    return;
  }
  connection_ = request.id;
  ConnectionParameters parameters;
  parameters.responder_resources = parameters.initiator_depth = kReads;
  need(device_->accept(request.id, qp_.get(), parameters));
}

void Endpoint::disconnect() {
  run([&] { device_->disconnect(connection_); });
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::milliseconds(options_.timeout_ms),
                         [&] { return link_ == Link::Down; }))
    die("the disconnect was not answered");
}

bool Endpoint::connected() {
  const std::lock_guard lock(mutex_);
  return link_ == Link::Up;
}

void Endpoint::set_link(Link link) {
  const std::lock_guard lock(mutex_);
  link_ = link;
  changed_.notify_all();
}

void Endpoint::wait_for_link() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::milliseconds(options_.timeout_ms),
                         [&] { return link_ != Link::None || !failure_.empty(); }))
    die("nobody connected");
  if (!failure_.empty()) die(failure_);
}

void Endpoint::on_connect_response(ConnectionId, const ConnectResponse&) {
  set_link(Link::Up);
}
void Endpoint::on_established(ConnectionId) {
  set_link(Link::Up);
}
void Endpoint::on_disconnected(ConnectionId, const std::string& reason) {
  std::fprintf(stderr, "disconnected: %s\n", reason.c_str());
  set_link(Link::Down);
}
void Endpoint::on_connect_failed(ConnectionId, const ConnectFailed& failed) {
  const std::lock_guard lock(mutex_);
  failure_ = failed.message;
  changed_.notify_all();
}

// ---- Work

int Endpoint::poll(reactor::TimeNs) {
  WorkCompletion batch[32];
  const int count = cq_->poll(batch);
  if (count == 0) return 0;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count; i++) done_[batch[i].receive ? 1 : 0].push_back(batch[i]);
  changed_.notify_all();
  return count;
}

void Endpoint::post_receive(uint64_t wr_id, size_t offset, uint32_t length) {
  const Sge sge{address_of(offset), length, region_->lkey()};
  const ReceiveWorkRequest request{wr_id, 1, &sge};
  run([&] { need(srq_ ? srq_->post_receive({&request, 1}) : qp_->post_receive({&request, 1})); });
}

SendWorkRequest Endpoint::request(Opcode opcode, size_t offset, uint32_t length,
                                  uint64_t remote_address, uint32_t rkey) {
  sge_ = {address_of(offset), length, region_->lkey()};
  SendWorkRequest request{};
  request.opcode = opcode;
  request.flags = kSignaled;
  request.num_sge = 1;
  request.sg_list = &sge_;
  request.remote_address = remote_address;
  request.rkey = rkey;
  if (address_handle_) request.datagram = {address_handle_.get(), remote_qpn_, remote_qkey_};
  return request;
}

void Endpoint::post(const SendWorkRequest& request) {
  run([&] { need(qp_->post_send({&request, 1})); });
}

bool Endpoint::wait(bool receive, WorkCompletion& completion) {
  std::unique_lock lock(mutex_);
  auto& done = done_[receive ? 1 : 0];
  if (!changed_.wait_for(lock, std::chrono::milliseconds(options_.timeout_ms),
                         [&] { return !done.empty() || link_ == Link::Down; }))
    die(receive ? "nothing was received" : "a send did not complete");
  if (done.empty()) return false;
  completion = done.front();
  done.pop_front();
  if (completion.status == Status::Success) return true;
  if (link_ == Link::Down || (connection_ != 0 && completion.status == Status::FlushError))
    return false;
  die(std::string(receive ? "a receive" : "a send") + " failed: " + to_string(completion.status));
}

WorkCompletion Endpoint::wait(bool receive) {
  WorkCompletion completion;
  if (!wait(receive, completion)) die("the connection ended");
  return completion;
}

bool Endpoint::take_received(WorkCompletion& completion) {
  const std::lock_guard lock(mutex_);
  if (done_[1].empty()) return false;
  completion = done_[1].front();
  done_[1].pop_front();
  return true;
}

}  // namespace nvmeof::peer
