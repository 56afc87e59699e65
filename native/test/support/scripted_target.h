// The controller's end of queues, played by hand: it keeps the capsules that came and does with
// each what the test says, right or wrong. serve() makes it a small controller with a memory
// namespace. Over the loopback provider, on the thread of the test (or of the one reactor it is
// added to).
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "rdma/provider.h"
#include "reactor/reactor.h"
#include "support/loopback_provider.h"

namespace nvmeof::test {

struct Capsule {
  uint32_t connection;  // index in ScriptedTarget::connections
  uint8_t sqe[64];
  std::vector<uint8_t> data;  // in the capsule
  uint16_t cid;
  uint8_t sgl_type;
  uint64_t address;
  uint32_t length, key;  // of a keyed SGL
};

class ScriptedTarget : public rdma::ConnectionHandler, public reactor::Poller {
 public:
  struct Connection {
    rdma::ConnectionId id;
    std::unique_ptr<rdma::QueuePair> qp;
    std::vector<uint8_t> receives;
    std::unique_ptr<rdma::MemoryRegion> region;
    std::vector<uint8_t> request_data;
    bool disconnected = false;
  };
  enum class Answer { Accept, Reject, Ignore };
  static constexpr uint32_t kCapsuleBytes = 64 + 8192;
  static constexpr uint16_t kPort = 4420;

  ScriptedTarget(LoopbackFabric* fabric, const char* address);
  ~ScriptedTarget() override;

  // Moves everything and takes in the capsules that arrived.
  void progress();
  // `bytes` of a response (normally 16), invalidating `key` unless 0.
  void send(uint32_t connection, const std::vector<uint8_t>& bytes, uint32_t key = 0);
  static std::vector<uint8_t> cqe(uint16_t cid, uint16_t status = 0, uint64_t result = 0);
  // The right answer to a capsule; `invalidate` as its SGL allows.
  void respond(const Capsule& capsule, uint16_t status = 0, bool invalidate = true);
  // False when the access was refused (the queue pair is dead then).
  bool write_host(const Capsule& capsule, const std::vector<uint8_t>& data, uint64_t offset = 0);
  bool read_host(const Capsule& capsule, std::vector<uint8_t>* data, uint64_t extra = 0);
  // Executes reads and writes against `memory` (blocks of 512 bytes) and answers.
  void serve(const Capsule& capsule);
  int poll(reactor::TimeNs now) override;  // progress() and serve() of all that came

  void on_connect_request(const rdma::ConnectRequest& request) override;
  void on_connect_response(rdma::ConnectionId, const rdma::ConnectResponse&) override {}
  void on_connect_failed(rdma::ConnectionId, const rdma::ConnectFailed&) override {}
  void on_established(rdma::ConnectionId) override {}
  void on_disconnected(rdma::ConnectionId id, const std::string&) override;

  Answer answer = Answer::Accept;
  std::vector<uint8_t> private_data = std::vector<uint8_t>(32);  // of accept and reject
  uint32_t receives_per_queue = 64;
  std::vector<std::unique_ptr<Connection>> connections;
  std::deque<Capsule> capsules;
  std::vector<uint8_t> memory;
  uint64_t reads_served = 0, writes_served = 0, in_capsule_writes = 0, failed = 0;
  uint64_t read_bytes_waiting_max = 0;  // most read bytes asked for at one time
  // Every so many-th command served fails with this status; write is answered but not done. 0:
  // none.
  uint64_t fail_every = 0, lose_write_every = 0;
  uint16_t fail_status = 0x281;
  bool silent = false;  // poll() answers nothing
  LoopbackDevice* device() { return device_.get(); }

 private:
  bool transfer(uint32_t connection, rdma::Opcode opcode, uint64_t address, uint32_t key,
                uint8_t* bytes, size_t length);
  void post_receive(Connection& connection, uint32_t index);
  void take(uint32_t connection, const uint8_t* bytes, uint32_t length);

  LoopbackFabric* const fabric_;
  std::unique_ptr<LoopbackDevice> device_;
  std::unique_ptr<rdma::ProtectionDomain> pd_;
  std::unique_ptr<rdma::CompletionQueue> receive_cq_, send_cq_;
  std::vector<uint8_t> scratch_;
  std::unique_ptr<rdma::MemoryRegion> scratch_region_;
};

}  // namespace nvmeof::test
