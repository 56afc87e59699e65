// One queue of the host engine: its queue pair, capsules, keys and commands, from the waiting list
// to the answer. On the reactor's thread. The engine (host_engine.cc) finds the queue for each
// event, decides when flush() and finish_close() run, and destroys it.
//
// A command takes a slot. Its CID is the slot's index below the slot's generation, so that an
// answer to an earlier command of the slot is recognised. The user's command ends when it was
// answered and its key is dead; the slot is free when, besides, the queue pair is through with the
// capsule. Answers do not wait for that: there are more slots than commands in flight.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "nvmf/host_engine.h"

namespace nvmeof::nvmf {

class HostQueue;

// What the queues of one engine have in common.
struct HostShared {
  static constexpr size_t kBatch = 64;  // work requests of one call

  rdma::Device* device = nullptr;
  rdma::ProtectionDomain* pd = nullptr;
  EventSink* sink = nullptr;
  bool memory_windows = false;
  bool remote_invalidate = false;  // the controller may end a window's key with its answer

  // Bytes that reads in flight may bring to this reactor (0: no limit), and the queues that wait
  // for some of them, served in turns. Once the window was full it opens again when a good part of
  // it is free: whoever starts a command for each that ends sends packets one by one for ever.
  uint32_t receive_window = 0;
  uint64_t receive_used = 0;
  HostQueue* starved_head = nullptr;
  HostQueue* starved_tail = nullptr;
  static constexpr uint32_t kReopenBytes = 60 * 4096;
  bool window_opens() const {
    return receive_used + std::min(receive_window / 4, kReopenBytes) <= receive_window;
  }

  std::vector<HostQueue*> dirty;    // flush() is due
  std::vector<HostQueue*> closing;  // finish_close() is due or waits for the connection's end

  std::array<rdma::SendWorkRequest, kBatch> sends;
  std::array<rdma::Sge, kBatch> send_sges;
  std::array<rdma::ReceiveWorkRequest, kBatch> receives;

  // Written by the reactor's thread, read by any.
  struct Counters {
    std::atomic<uint64_t> commands, bytes_to_controller, bytes_to_host, in_capsule, cancelled;
    std::atomic<uint64_t> local_invalidates, protocol_errors, queues, slots, windows, receive_bytes;
  } counters{};
};

enum class HostQueueState : uint8_t { Connecting, Live, Closing, Closed };
const char* to_string(HostQueueState state);

class HostQueue {
 public:
  // Send work requests and receives that may be outstanding: what the completion queue must hold.
  static uint32_t completions_max(uint32_t depth) { return 3 * slots_for(depth) + depth; }

  // `handle` comes back in WorkCompletion::qp_context.
  static Result<std::unique_ptr<HostQueue>> create(HostShared* shared, uint32_t id, uint64_t handle,
                                                   rdma::CompletionQueue* cq,
                                                   const HostQueueOptions& options);
  ~HostQueue();

  Result<void> connect(const sockaddr_storage& peer, uint16_t port,
                       const rdma::ConnectionParameters& parameters,
                       rdma::ConnectionHandler* handler);

  void submit(HostCommand* command);
  void cancel(uint64_t tag, reactor::TimeNs now);
  // Ends the queue: memory is out of the peer's reach when this returns, commands end in
  // finish_close(). `certain` false: the connection's own reason is better, when it comes.
  void begin_close(std::string reason, bool certain = true);

  void on_connected(const rdma::ConnectResponse& response);
  void on_connect_failed(const rdma::ConnectFailed& failed);
  void on_disconnected(const std::string& reason);
  void on_completion(const rdma::WorkCompletion& completion);

  // Posts everything that came up since the last time: receives, invalidations, commands.
  void flush();
  // A turn of a queue that waits for the receive window: starts commands, in order. Their number; 0
  // when it must go on waiting, or had nothing left to wait for.
  int serve_starved();
  // Ends the commands, once. True when the queue can be destroyed: its last event went out.
  bool finish_close();
  bool finish_is_due() const { return !ended_ || disconnected_; }
  // To be called when `deadline` is over: the connect fails, or keys of commands given up end.
  void expire(reactor::TimeNs now);
  // Once every kProbeInterval: asks a controller that owes answers and gave none since the last
  // time whether it lives. False: no answer is awaited.
  bool probe_silent();
  bool probes() const { return probes_; }
  // Gives a connect up: ConnectFailed follows.
  void fail_connect(rdma::ConnectFailure failure, std::string message);
  // For the engine's own end: no event of the connection is waited for.
  void abandon();

  uint32_t id() const { return id_; }
  uint64_t handle() const { return handle_; }
  rdma::ConnectionId connection() const { return connection_; }
  HostQueueState state() const { return state_; }
  rdma::CompletionQueue* cq() const { return cq_; }
  rdma::ProtectionDomain* protection_domain() const {
    return own_pd_ ? own_pd_.get() : shared_->pd;
  }
  uint32_t depth() const { return depth_; }
  // Of connecting; then of the first key of a command given up, if the answer does not end it.
  reactor::TimeNs deadline = reactor::kNever;

 private:
  // In-capsule data up to this size saves a READ at any load; more only helps a queue with at most
  // kLightLoad commands in flight (measured with 4 KiB: wins at 4, loses at 32).
  static constexpr uint32_t kSmallInCapsule = 1024;
  static constexpr uint32_t kLightLoad = 4;
  static constexpr size_t kLargeCapsules = 8;
  // A queue without a read in flight may have one of this size beyond the receive window, so that a
  // silent controller cannot starve another's admin queue.
  static constexpr uint32_t kReadAlways = 4096;
  static constexpr int kStarvedTurn = 15;  // commands that begin a train together

  // What a work request was for: wr_id above the slot's or receive's index.
  enum class Work : uint8_t { Send, Invalidate, Bind };
  static constexpr unsigned kWorkShift = 32;

  // Slots of a queue: its commands in flight, and as many again, up to kSlotsBeyond, that were
  // answered and wait only for the acknowledgement of their capsule.
  static constexpr uint32_t kSlotsBeyond = 64;
  static uint32_t slots_for(uint32_t depth) {
    return std::min(depth - 1 + std::min(depth - 1, kSlotsBeyond), 65535u);  // a CID has 16 bits
  }

  enum class Key : uint8_t { None, Live, Dying, Invalidating };  // Dying: to be invalidated by us
  struct Slot {
    HostCommand* command = nullptr;  // null: free, or only the slot is still needed
    std::unique_ptr<rdma::MemoryWindow> window;
    uint8_t* large_capsule = nullptr;
    uint32_t rkey = 0;
    uint32_t receive_bytes = 0;     // of the receive window
    reactor::TimeNs key_until = 0;  // of a command given up whose key is Live
    uint16_t generation = 0;
    Key key = Key::None;
    bool used = false;
    bool posted = false;        // the controller may know the command
    bool send_pending = false;  // the queue pair may still read the capsule
    bool answered = false;
    bool cancelled = false;
    bool exposed = false;  // data under the region's own key, which stays valid
    bool keyed = false;    // had a key of its own, rkey
    std::array<uint8_t, 16> cqe{};
  };

  HostQueue(HostShared* shared, uint32_t id, uint64_t handle, rdma::CompletionQueue* cq,
            const HostQueueOptions& options);
  Result<void> allocate();
  void move(HostQueueState to);
  void mark_dirty();

  bool admits(const HostCommand& command) const;
  void pump();
  void start_first();
  void starve();
  void unstarve();

  bool fits_capsule(const HostCommand& command) const;
  size_t build(uint16_t index, rdma::SendWorkRequest* out, rdma::Sge* sge);
  size_t expose(Slot& slot, uint16_t index, uint8_t* sgl, rdma::SendWorkRequest* out);
  void count_command(const HostCommand& command);
  bool post(size_t count);
  void flush_receives();
  void flush_invalidates();
  void flush_commands();

  void on_response(const rdma::WorkCompletion& completion);
  Slot* slot_of(uint16_t cid);
  uint16_t command_id(uint16_t index) const {
    return static_cast<uint16_t>(uint32_t{slots_[index].generation} << slot_bits_ | index);
  }
  void protocol_error(std::string reason);
  void kill_key(uint16_t index);
  void key_died(Slot& slot);
  void end_command(uint16_t index);
  void answered(Slot& slot);
  void release_if_over(uint16_t index);
  void return_receive_bytes(Slot& slot);
  void end_all();
  void end_overdue_keys(reactor::TimeNs now);
  void cancel_waiting(uint64_t tag);
  void cancel_slot(uint16_t index, reactor::TimeNs now);

  uint8_t* small_capsule(uint16_t index) { return capsules_ + size_t{index} * small_stride_; }

  HostShared* const shared_;
  const uint32_t id_;
  const uint64_t handle_;
  rdma::CompletionQueue* const cq_;
  const uint32_t depth_;
  const uint32_t slot_count_;
  const uint32_t slot_bits_;
  const uint32_t in_capsule_bytes_;
  uint32_t in_flight_max_;
  uint32_t in_flight_ = 0;  // commands taken from the waiting list and not answered
  uint32_t answers_ = 0, answers_probed_ = 0;  // so far; when probe_silent() looked last
  const bool probes_;

  HostQueueState state_ = HostQueueState::Connecting;
  rdma::ConnectionId connection_ = 0;
  bool connected_ = false;     // QueueEstablished went out
  bool disconnected_ = false;  // no further event of the connection comes
  bool ended_ = false;         // end_all() ran
  bool reason_certain_ = false;
  std::string reason_;
  rdma::ConnectFailed failed_{};
  std::vector<uint8_t> failed_private_data_;

  std::unique_ptr<rdma::ProtectionDomain> own_pd_;  // without memory windows
  uint8_t* memory_ = nullptr;                       // receives, small capsules, large capsules
  size_t memory_bytes_ = 0;
  uint8_t* capsules_ = nullptr;
  uint32_t small_stride_ = 0;
  std::unique_ptr<rdma::MemoryRegion> region_;
  std::vector<rdma::Sge> receive_sges_;
  std::vector<Slot> slots_;
  std::vector<uint16_t> free_;
  std::vector<uint8_t*> large_free_;
  std::vector<uint16_t> ready_;    // slots whose command was not posted yet
  std::vector<uint16_t> dying_;    // slots whose key must be invalidated
  std::vector<uint16_t> reposts_;  // receives to give back
  HostCommand* waiting_head_ = nullptr;
  HostCommand* waiting_tail_ = nullptr;
  uint32_t reads_in_flight_ = 0;
  bool dirty_ = false;
  bool starved_ = false;
  HostQueue* starved_next_ = nullptr;
  HostQueue* starved_previous_ = nullptr;
  std::unique_ptr<rdma::QueuePair> qp_;  // last: goes before the memory and keys it uses
};

}  // namespace nvmeof::nvmf
