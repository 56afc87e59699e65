// One queue pair on a device of its own, used from a plain thread: every call runs on the device's
// reactor, and completions are waited for. For programs that speak with other RDMA programs step by
// step; whatever goes wrong ends the program with a sentence on standard error.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/provider.h"

namespace nvmeof::peer {

[[noreturn]] void die(const std::string& what);

template <typename T>
T need(Result<T> result) {
  if (!result) die(result.error().message);
  return std::move(*result);
}
inline void need(const Result<void>& result) {
  if (!result) die(result.error().message);
}

sockaddr_storage parse_address(const std::string& text);

struct EndpointOptions {
  std::string address;
  std::string pcap;
  uint32_t path_mtu = 0;  // 0: the interface's
  size_t memory_bytes = 4 << 20;
  uint32_t depth = 1024;
  uint32_t timeout_ms = 30'000;  // of every wait
};

class Endpoint final : private reactor::Poller, private rdma::ConnectionHandler {
 public:
  explicit Endpoint(const EndpointOptions& options);
  ~Endpoint() override;

  // `shared_receives`: receives can be posted before a connection is accepted.
  void make_qp(rdma::QpType type, bool shared_receives = false);
  // From this thread to the reactor's and back.
  template <typename F>
  void run(F&& function) {
    reactor_->run_and_wait(function);
  }

  rdma::Device& device() { return *device_; }
  rdma::QueuePair& qp() { return *qp_; }
  uint8_t* memory(size_t offset = 0) { return memory_.data() + offset; }
  uint64_t address_of(size_t offset) { return reinterpret_cast<uint64_t>(memory(offset)); }
  uint32_t rkey() const { return region_->rkey(); }
  uint64_t counter(const std::string& name) const;

  // ---- Without connection management
  void connect_path(const rdma::PathAttributes& attributes);
  void reach(const sockaddr_storage& peer, uint32_t remote_qpn, uint32_t remote_qkey);  // Ud

  // ---- With it: made for one connection
  void connect(const sockaddr_storage& peer, uint16_t port);
  void accept_one(uint16_t port);
  void disconnect();
  bool connected();

  // ---- Work
  void post_receive(uint64_t wr_id, size_t offset, uint32_t length);
  rdma::SendWorkRequest request(rdma::Opcode opcode, size_t offset, uint32_t length,
                                uint64_t remote_address = 0, uint32_t rkey = 0);
  void post(const rdma::SendWorkRequest& request);
  // The next completion of a send or of a receive; anything but success is the end, unless the
  // connection ended (false).
  bool wait(bool receive, rdma::WorkCompletion& completion);
  rdma::WorkCompletion wait(bool receive);
  // What has been received until now; does not wait.
  bool take_received(rdma::WorkCompletion& completion);

 private:
  int poll(reactor::TimeNs now) override;
  bool arm() override { return cq_->arm(); }
  void on_connect_request(const rdma::ConnectRequest& request) override;
  void on_connect_response(rdma::ConnectionId, const rdma::ConnectResponse&) override;
  void on_connect_failed(rdma::ConnectionId, const rdma::ConnectFailed& failed) override;
  void on_established(rdma::ConnectionId) override;
  void on_disconnected(rdma::ConnectionId, const std::string& reason) override;
  enum class Link : uint8_t { None, Up, Down };
  void set_link(Link link);
  void wait_for_link();

  EndpointOptions options_;
  std::unique_ptr<reactor::Reactor> reactor_;
  std::unique_ptr<rdma::Device> device_;
  std::unique_ptr<rdma::ProtectionDomain> pd_;
  std::vector<uint8_t> memory_;
  std::unique_ptr<rdma::MemoryRegion> region_;
  std::unique_ptr<rdma::CompletionQueue> cq_;
  std::unique_ptr<rdma::SharedReceiveQueue> srq_;
  std::unique_ptr<rdma::QueuePair> qp_;
  std::unique_ptr<rdma::AddressHandle> address_handle_;
  uint32_t remote_qpn_ = 0, remote_qkey_ = 0;
  rdma::ConnectionId connection_ = 0;
  rdma::Sge sge_{};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<rdma::WorkCompletion> done_[2];  // sends, receives
  Link link_ = Link::None;
  std::string failure_;
};

}  // namespace nvmeof::peer
