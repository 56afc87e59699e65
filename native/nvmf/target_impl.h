// The target engine's parts in one class, over several files by subject: target_engine.cc (set-up,
// polling, queues' lives), target_receive.cc (capsules in), target_receives.cc (their buffers),
// target_serve.cc (whose turn it is), target_in_place.cc (reads and writes without buffers),
// target_execute.cc (buffers, fetching, block requests), target_send.cc (work requests out),
// target_control.cc (namespaces, the control plane's calls, counters), target_access.cc (ANA).
// Reactor's thread.
#pragma once
#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "nvmf/io_commands.h"
#include "nvmf/target_memory.h"
#include "nvmf/target_queue.h"

namespace nvmeof::nvmf {

// The lessons behind these numbers: a train of about 15 WRITEs, then their responses; small rounds
// sustain themselves better than large ones.
inline constexpr unsigned kTrain = 15;
// A rest of fewer answers goes with the train before it: a train of its own would be a short one.
inline constexpr unsigned kTrainRest = 8;
inline constexpr unsigned kFetchBatch = 16;
inline constexpr unsigned kPollBatch = 32, kPollBatches = 16;

// Entries of an engine's completion queue at most: its receives, and the send queue entries of all
// its queues, enough for 800 of the default depth. Small devices have 32767.
inline constexpr uint32_t kCompletionsMax = 1u << 18;
inline constexpr uint32_t kSendEntriesMax = 256;  // of one queue
inline constexpr uint32_t kDepthMin = 2, kDepthMax = 16384;

inline constexpr uint32_t kControlFetchMax = 128 * 1024;  // data handed up with one capsule

// Why a queue ends whose controller's lease is over.
inline constexpr const char* kOverdue = "no Keep Alive came in time";

inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kClosingPatience = 200 * kMillisecond;   // for answers still on their way
inline constexpr uint64_t kDyingPatience = 10'000 * kMillisecond;  // for the provider's last event
inline constexpr uint64_t kDrainPatience = 500 * kMillisecond;     // then channels are cancelled

struct TargetCounters {  // one writer, any reader
  std::atomic<uint64_t> commands[kIoRows], control_commands, bytes_read, bytes_written, errors,
      buffer_waits, queue_failures, live_queues, live_commands, live_buffers, live_buffer_bytes,
      buffer_bytes, live_receives, live_namespaces, unregistered_channels;
  static void set(std::atomic<uint64_t>& counter, uint64_t to) {
    counter.store(to, std::memory_order_relaxed);
  }
};

class TargetEngineImpl final : public TargetEngine {
 public:
  TargetEngineImpl(rdma::Device* device, reactor::Reactor* reactor, EventSink* sink,
                   const TargetLimits& limits);
  ~TargetEngineImpl() override;
  Result<void> set_up();

  // reactor::Poller
  int poll(reactor::TimeNs now) override;
  reactor::TimeNs next_deadline() const override;
  bool arm() override;

  // rdma::ConnectionHandler
  void on_connect_request(const rdma::ConnectRequest& request) override;
  void on_connect_response(rdma::ConnectionId id, const rdma::ConnectResponse& response) override;
  void on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) override;
  void on_established(rdma::ConnectionId id) override;
  void on_disconnected(rdma::ConnectionId id, const std::string& reason) override;

  // TargetEngine
  Result<void> accept(uint32_t queue, rdma::ConnectionId connection,
                      const AcceptOptions& options) override;
  void bind(uint32_t queue, const BindOptions& options) override;
  void renew_by(uint32_t queue, std::shared_ptr<reactor::Lease> lease) override;
  void complete(uint32_t queue, uint32_t tag, uint64_t result, uint16_t status,
                std::span<const uint8_t> data) override;
  bool abort(uint32_t queue, uint16_t cid) override;
  void close(uint32_t queue) override;
  void set_namespace(uint32_t table, uint32_t nsid, const NamespaceEntry& entry, ChangeDone done,
                     void* context) override;
  void remove_namespace(uint32_t table, uint32_t nsid, ChangeDone done, void* context) override;
  void destroy_table(uint32_t table, ChangeDone done, void* context) override;
  void set_access(uint32_t table, const AccessRule& rule, ChangeDone done, void* context) override;
  const Error* change_error() const override { return tables_.error(); }
  uint32_t live_queues() const override;
  const QueueStatistics* statistics(uint32_t queue) const override;
  const rdma::QueuePairCounters* transport(uint32_t queue) const override;
  std::vector<rdma::CounterValue> counters() const override;

 private:
  // Posts what block completions made ready in this iteration: last at Stage::Block, before the
  // device transmits.
  class Flusher final : public reactor::Poller {
   public:
    explicit Flusher(TargetEngineImpl* engine) : engine_(engine) {}
    int poll(reactor::TimeNs now) override { return engine_->flush_round(now); }

   private:
    TargetEngineImpl* engine_;
  };
  enum class Work : uint64_t { Receive = 1, Read, Write, Response };
  static uint64_t work_id(Work work, uint32_t index) {
    return static_cast<uint64_t>(work) << 56 | index;
  }

  // Calls of the control plane come between polls, maybe long after the last one.
  reactor::TimeNs time() const { return reactor_ ? reactor_->now() : now_; }

  // target_engine.cc
  int reap(bool cq_dry);
  void check_deadlines();
  void report_quiet(TargetQueue* queue);
  void establish(TargetQueue* queue);
  void kill(TargetQueue* queue, std::string reason);
  void gone(TargetQueue* queue, const std::string& reason);
  void drop_commands(TargetQueue* queue, bool work_requests_ended);
  void finish_queue(TargetQueue* queue);
  TargetQueue* queue_of(void* context) const;
  TargetQueue* queue_by_id(uint32_t id) const;
  TargetQueue* queue_by_connection(rdma::ConnectionId id) const;

  // target_receive.cc
  void on_completion(const rdma::WorkCompletion& wc);
  void on_receive(const rdma::WorkCompletion& wc);
  void on_sent(const rdma::WorkCompletion& wc);
  uint32_t take_capsule(TargetQueue* queue, const WaitingCapsule& waiting);
  void launch_arrivals();
  void launch(Command* command);
  // target_in_place.cc
  bool in_place(Command* command);
  bool read_in_place(Command* command);
  bool write_in_place(Command* command);
  void placed(Command* command);
  // target_serve.cc
  void await_service(TargetQueue* queue, ServiceList* list);
  void forget_service(TargetQueue* queue);
  bool one_waits() const;
  bool receives_short() const;
  int serve_queues();
  int serve(TargetQueue* queue, const ServiceTurn& turn);
  int take_waiting(TargetQueue* queue, const ServiceTurn& turn);
  // target_receives.cc
  bool promises_receives() const { return !srq_ || !device_->capabilities().receiver_not_ready; }
  bool reserve_receives(TargetQueue* queue);
  void return_receives(TargetQueue* queue);
  void repost(uint32_t receive);
  void taken(uint32_t receive);
  void flush_receives();
  void flush_shared_receives();
  bool flush_own_receives(TargetQueue* queue);
  void fill_receive(uint32_t receive, rdma::ReceiveWorkRequest* request, rdma::Sge* sge) const;
  bool receives_wait() const { return srq_ ? !to_repost_.empty() : !reposting_.empty(); }

  // target_execute.cc
  void need_buffer(Command* command, WaitingPool* from, uint32_t bytes);
  void have_memory(Command* command);
  void fetch(Command* command);
  void fetched(Command* command);
  void execute(Command* command);
  void run(Command* command, bool first);
  bool next_flush_target(Command* command);
  static void on_block_done(block::Request* request, int error);
  void hand_up(Command* command);
  void refuse(Command* command, const Rejection& why);
  void finish(Command* command);
  void release_memory(Command* command);
  void release(Command* command);
  int serve_waiting(WaitingPool* from);

  // target_send.cc
  int flush_round(reactor::TimeNs now);
  int flush();
  int flush_queue(TargetQueue* queue);
  unsigned gather_answers(TargetQueue* queue);
  unsigned gather_fetches(TargetQueue* queue, unsigned at);
  rdma::Sge payload_of(const Command* command) const;
  void fill_response(TargetQueue* queue, Command* command, rdma::SendWorkRequest* request,
                     rdma::Sge* sge);
  void fill_fetch(Command* command, rdma::SendWorkRequest* request, rdma::Sge* sge);
  void mark_dirty(TargetQueue* queue);

  // target_control.cc
  void keep_alive(TargetQueue* queue);
  void refresh_live_counters();
  void tables_changed();
  void expose_resident(Namespace& entry);
  // target_access.cc
  void stop_refused(TargetQueue* queue, AccessChange* change);

  rdma::Device* device_;
  reactor::Reactor* reactor_;  // null in tests, where the caller polls
  EventSink* sink_;
  TargetLimits limits_;
  reactor::TimeNs now_ = 0;

  std::unique_ptr<rdma::ProtectionDomain> pd_;
  std::unique_ptr<rdma::CompletionQueue> cq_;
  std::unique_ptr<TargetMemory> memory_;
  std::unique_ptr<rdma::SharedReceiveQueue> srq_;
  std::unique_ptr<WaitingPool> data_, control_;

  std::vector<uint32_t> free_responses_;
  // With an SRQ: to be posted to it. Without: of no queue.
  std::vector<uint32_t> to_repost_;
  uint32_t posted_receives_ = 0;
  uint32_t idle_receives_ = 0;                        // neither posted nor holding a capsule
  uint32_t promised_receives_ = 0;                    // where a capsule must always find one
  std::vector<TargetQueue*> receive_owners_;          // without an SRQ: by receive
  std::vector<TargetQueue*> reposting_;               // without an SRQ: with receives to be posted
  uint32_t send_budget_ = 0, send_entries_used_ = 0;  // of the send queues of all queues
  uint32_t live_commands_ = 0;
  bool buffers_freed_ = false;  // since waiting commands were served last

  struct Place {
    std::unique_ptr<TargetQueue> queue;
    uint32_t generation = 0;
  };
  std::vector<Place> places_;
  std::unordered_map<uint32_t, TargetQueue*> by_id_;
  std::unordered_map<rdma::ConnectionId, TargetQueue*> by_connection_;
  ServiceList sparse_, busy_;  // with capsules that wait: none had waited before; the others
  bool busy_rests_ = false;    // no busy queue had a turn in the last round
  std::vector<TargetQueue*> dirty_;
  std::vector<TargetQueue*> flushing_;
  std::vector<TargetQueue*> ending_;  // Closing, Dying, Gone
  std::vector<Command*> arrivals_;    // of this round: parsed, not started
  NamespaceTables tables_;

  rdma::SendWorkRequest requests_[2 * (kTrain + kTrainRest) + kFetchBatch];
  rdma::Sge sges_[2 * (kTrain + kTrainRest) + kFetchBatch];
  Flusher flusher_;
  TargetCounters counters_{};
};

}  // namespace nvmeof::nvmf
