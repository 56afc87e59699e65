#include "rdma/verbs/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <string>

#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

constexpr size_t kChain = 32;
// Marks the work request id of a send; below it stands the sequence number. A receive keeps the id
// of its user, who leaves this bit alone. With an error nothing else tells the two apart.
constexpr uint64_t kSendBit = 1ull << 63;

// By Opcode.
constexpr ibv_wr_opcode kOpcodes[] = {
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_ATOMIC_CMP_AND_SWP,
};
static_assert(kOpcodes[static_cast<size_t>(Opcode::AtomicCompareSwap)] ==
              IBV_WR_ATOMIC_CMP_AND_SWP);

bool has_immediate(Opcode opcode) {
  return opcode == Opcode::SendWithImm || opcode == Opcode::RdmaWriteWithImm;
}

unsigned send_flags(uint8_t flags) {
  constexpr struct {
    uint8_t ours;
    unsigned theirs;
  } kFlags[] = {{kSignaled, IBV_SEND_SIGNALED},
                {kSolicited, IBV_SEND_SOLICITED},
                {kFence, IBV_SEND_FENCE},
                {kInline, IBV_SEND_INLINE}};
  unsigned result = 0;
  for (const auto& flag : kFlags) {
    if ((flags & flag.ours) != 0) result |= flag.theirs;
  }
  return result;
}

uint32_t total_length(const SendWorkRequest& request) {
  uint32_t total = 0;
  for (unsigned i = 0; i < request.num_sge; i++) total += request.sg_list[i].length;
  return total;
}

}  // namespace

// ---- The handle

Result<void> QueuePairHandle::modify(ibv_qp_attr* attributes, int mask, State to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (qp_ == nullptr || state() == State::Err)
    return Error{ENOTCONN, "the queue pair failed or was destroyed meanwhile"};
  if (const int code = library_.modify_qp(qp_, attributes, mask); code != 0)
    return Error{code,
                 std::string("the queue pair cannot go to ") + to_string(to) + reason_of(code)};
  state_.store(to, std::memory_order_release);
  return {};
}

void QueuePairHandle::note(State to) {
  State now = state();
  while (now != State::Err && !state_.compare_exchange_weak(now, to)) {
  }
}

void QueuePairHandle::to_error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (qp_ == nullptr) return;
  // Also when the device moved it there by itself: after this nothing reaches memory through it.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  library_.modify_qp(qp_, &attributes, IBV_QP_STATE);
  state_.store(State::Err, std::memory_order_release);
}

void QueuePairHandle::destroy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (qp_ != nullptr) library_.destroy_qp(qp_);
  qp_ = nullptr;
  state_.store(State::Err, std::memory_order_release);
}

// ---- The reactor's half

QueuePair::QueuePair(const Library& library, ibv_qp* qp, const QueuePairOptions& options,
                     const QueuePairTraits& traits, QueuePairFailure& failure, ObjectCounts& counts)
    : library_(library),
      qp_(qp),
      handle_(std::make_shared<QueuePairHandle>(library, qp)),
      send_cq_(static_cast<CompletionQueue*>(options.send_cq)),
      receive_cq_(static_cast<CompletionQueue*>(options.receive_cq)),
      context_(options.context),
      max_send_wr_(options.max_send_wr),
      max_sge_(std::max(options.max_send_sge, 1u)),
      traits_(traits),
      failure_(failure),
      counts_(counts),
      ring_(std::bit_ceil(std::max<size_t>(options.max_send_wr, 1))) {
  send_cq_->attach(this);
  receive_cq_->attach(this);
  counts_.queue_pairs.fetch_add(1, std::memory_order_relaxed);
}

QueuePair::~QueuePair() {
  handle_->destroy();
  send_cq_->detach(this);
  receive_cq_->detach(this);
  for (; tail_ < head_; tail_++) end_sink(&sent(tail_));
  counts_.queue_pairs.fetch_sub(1, std::memory_order_relaxed);
}

Result<std::unique_ptr<QueuePair>> QueuePair::create(const Library& library,
                                                     const QueuePairOptions& options,
                                                     const QueuePairTraits& traits,
                                                     QueuePairFailure& failure,
                                                     ObjectCounts& counts) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = static_cast<CompletionQueue*>(options.send_cq)->cq();
  attributes.recv_cq = static_cast<CompletionQueue*>(options.receive_cq)->cq();
  attributes.cap.max_send_wr = options.max_send_wr;
  attributes.cap.max_send_sge = std::max(options.max_send_sge, 1u);
  attributes.cap.max_inline_data = traits.max_inline;
  attributes.qp_type = IBV_QPT_RC;
  if (options.srq != nullptr) {
    attributes.srq = static_cast<SharedReceiveQueue*>(options.srq)->srq();
  } else {
    attributes.cap.max_recv_wr = options.max_receive_wr;
    attributes.cap.max_recv_sge = std::max(options.max_receive_sge, 1u);
  }
  ibv_qp* const qp =
      library.create_qp(static_cast<ProtectionDomain*>(options.pd)->pd(), &attributes);
  if (qp == nullptr)
    return Error{errno, "No queue pair with " + std::to_string(options.max_send_wr) + " send and " +
                            std::to_string(options.max_receive_wr) +
                            " receive work requests could be made" + reason_of(errno) + "."};
  return std::unique_ptr<QueuePair>(new QueuePair(library, qp, options, traits, failure, counts));
}

Result<void> QueuePair::post_send(std::span<const SendWorkRequest> requests) {
  const State state = handle_->state();
  if (state != State::Rts && state != State::Err)
    return Error{EINVAL, std::string("post_send: the queue pair is in ") + to_string(state)};
  std::array<ibv_send_wr, kChain> chain;
  Result<void> result;
  for (size_t at = 0; at < requests.size() && result;) {
    const size_t wanted = std::min(chain.size(), requests.size() - at);
    size_t count = 0;
    for (; count < wanted && result; count++) {
      if (head_ + count - tail_ >= max_send_wr_) {
        result = Error{ENOMEM, "post_send: the send queue is full"};
      } else {
        result = fill(requests[at + count], &sent(head_ + count), &chain[count]);
      }
      if (!result) break;
      chain[count].wr_id = kSendBit | (head_ + count);
      chain[count].next = nullptr;
      if (count > 0) chain[count - 1].next = &chain[count];
    }
    // What came before the faulty one is accepted.
    if (auto posted = post(chain.data(), count); !posted) return posted;
    for (size_t i = 0; i < count; i++) {
      const SendWorkRequest& request = requests[at + i];
      if (request.opcode == Opcode::BindMemoryWindow)
        static_cast<MemoryWindow*>(request.bind.window)->bound(request.bind.rkey);
    }
    at += wanted;
  }
  return result;
}

Result<void> QueuePair::post(ibv_send_wr* first, size_t count) {
  if (count == 0) return {};
  ibv_send_wr* bad = nullptr;
  head_ += count;
  const int code = error_of_post(ibv_post_send(qp_, first, &bad));
  if (code == 0) return {};
  // From `bad` on nothing was taken.
  const uint64_t accepted = bad != nullptr ? (bad->wr_id & ~kSendBit) : head_ - count;
  while (head_ > accepted) {
    end_sink(&sent(--head_));
  }
  return Error{code, "post_send failed" + reason_of(code)};
}

Result<void> QueuePair::fill(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr) {
  const auto refuse = [](const char* what) {
    return Error{EINVAL, std::string("post_send: ") + what};
  };
  if (request.num_sge > max_sge_) return refuse("more SGEs than the queue pair has");
  if (has_immediate(request.opcode) && !traits_.immediates)
    return Error{EOPNOTSUPP, "post_send: iWARP has no immediate data"};
  if ((request.flags & kInline) != 0 && total_length(request) > traits_.max_inline)
    return refuse("more inline data than the queue pair takes");
  if ((request.flags & kInline) != 0 && request.opcode == Opcode::SendWithInvalidate &&
      !traits_.inline_with_invalidate)
    return refuse("the device takes no inline data with an invalidation");
  *sent = {};
  sent->wr_id = request.wr_id;
  sent->opcode = request.opcode;
  *wr = {};
  wr->opcode = kOpcodes[static_cast<size_t>(request.opcode)];
  wr->send_flags = send_flags(request.flags);
  wr->sg_list = reinterpret_cast<ibv_sge*>(const_cast<Sge*>(request.sg_list));
  wr->num_sge = request.num_sge;
  switch (request.opcode) {
    case Opcode::SendWithImm:
      wr->imm_data = htonl(request.imm_or_rkey);
      break;
    case Opcode::SendWithInvalidate:
    case Opcode::LocalInvalidate:
      wr->invalidate_rkey = request.imm_or_rkey;
      // siw's library takes it from here (push_send_wqe of libsiw); nobody else looks.
      wr->wr.rdma.rkey = request.imm_or_rkey;
      break;
    case Opcode::RdmaWriteWithImm:
      wr->imm_data = htonl(request.imm_or_rkey);
      [[fallthrough]];
    case Opcode::RdmaWrite:
    case Opcode::RdmaRead:
      wr->wr.rdma.remote_addr = request.remote_address;
      wr->wr.rdma.rkey = request.rkey;
      break;
    case Opcode::BindMemoryWindow:
      wr->bind_mw.mw = static_cast<MemoryWindow*>(request.bind.window)->mw();
      wr->bind_mw.rkey = request.bind.rkey;
      wr->bind_mw.bind_info.mr = static_cast<MemoryRegion*>(request.bind.region)->mr();
      wr->bind_mw.bind_info.addr = request.bind.address;
      wr->bind_mw.bind_info.length = request.bind.length;
      wr->bind_mw.bind_info.mw_access_flags =
          static_cast<unsigned>(verbs_access(request.bind.access));
      break;
    case Opcode::AtomicFetchAdd:
    case Opcode::AtomicCompareSwap:
      wr->wr.atomic.remote_addr = request.remote_address;
      wr->wr.atomic.rkey = request.rkey;
      wr->wr.atomic.compare_add = request.atomic.compare_add;
      wr->wr.atomic.swap = request.atomic.swap;
      break;
    case Opcode::Send:
      break;
  }
  if (request.opcode == Opcode::RdmaRead && traits_.register_read_sinks)
    return fill_read(request, sent, wr);
  // siw sends a WRITE without a completion of its own straight from our pages, and calls it done
  // when TCP has it (siw_qp_prepare_tx): what is put there next would leave in its place. With one
  // it copies.
  if (request.opcode == Opcode::RdmaWrite && traits_.signal_writes) signal(request, sent, wr);
  return {};
}

void QueuePair::signal(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr) {
  sent->silent = (request.flags & kSignaled) == 0;
  wr->send_flags |= IBV_SEND_SIGNALED;
}

// iWARP names the READ's sink to the peer, and the peer's answer is a write to it (RFC 5040, 4.4):
// a key for exactly these bytes, which ends with the READ. So no peer learns a key to more.
Result<void> QueuePair::fill_read(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr) {
  if (request.num_sge != 1) return Error{EINVAL, "post_send: a READ on iWARP has one SGE"};
  const Sge& sge = *request.sg_list;
  sent->sink = library_.reg_mr(qp_->pd, reinterpret_cast<void*>(sge.address), sge.length,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (sent->sink == nullptr) return registration_error(errno, sge.length);
  sent->sink_sge = {sge.address, sge.length, sent->sink->lkey};
  wr->sg_list = &sent->sink_sge;
  // The key has to outlast the READ, so its end must be known.
  signal(request, sent, wr);
  return {};
}

Result<void> QueuePair::post_receive(std::span<const ReceiveWorkRequest> requests) {
  if (has_srq())
    return Error{EINVAL, "post_receive: the queue pair takes from a shared receive queue"};
  const auto post = [](void* queue, ibv_recv_wr* first) {
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(static_cast<ibv_qp*>(queue), first, &bad);
  };
  return post_receives(requests, post, qp_);
}

// ---- Completions

void QueuePair::end_sink(Sent* read) {
  if (read->sink != nullptr) library_.dereg_mr(read->sink);
  read->sink = nullptr;
}

// A completion ends what was posted before it as well. Not a READ with a sink: over iWARP a SEND is
// complete when it has left, a READ when its data has come, so that later SENDs overtake it.
void QueuePair::retire(uint64_t sequence) {
  end_sink(&sent(sequence));
  completed_ = std::max(completed_, sequence + 1);
  while (tail_ < completed_ && sent(tail_).sink == nullptr) tail_++;
}

bool QueuePair::complete(const ibv_wc& wc, WorkCompletion* out) {
  *out = {};
  out->status = static_cast<Status>(wc.status);
  out->qp_num = wc.qp_num;
  out->qp_context = context_;
  if ((wc.wr_id & kSendBit) != 0) {
    const uint64_t sequence = wc.wr_id & ~kSendBit;
    if (sequence < tail_ || sequence >= head_) return false;
    const Sent& done = sent(sequence);
    out->wr_id = done.wr_id;
    out->opcode = done.opcode;
    const bool silent = done.silent && wc.status == IBV_WC_SUCCESS;
    retire(sequence);
    if (silent) return false;
  } else {
    out->receive = true;
    out->wr_id = wc.wr_id;
    out->opcode = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? Opcode::RdmaWriteWithImm : Opcode::Send;
    if (wc.status == IBV_WC_SUCCESS) {
      out->byte_length = wc.byte_len;
      if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
        if (out->opcode == Opcode::Send) out->opcode = Opcode::SendWithImm;
        out->flags = kWithImm;
        out->imm_or_rkey = ntohl(wc.imm_data);
      } else if ((wc.wc_flags & IBV_WC_WITH_INV) != 0) {
        out->opcode = Opcode::SendWithInvalidate;
        out->flags = kWithInvalidate;
        out->imm_or_rkey = wc.invalidated_rkey;
      }
    }
  }
  if (wc.status == IBV_WC_SUCCESS) return true;
  handle_->note(State::Err);
  if (wc.status != IBV_WC_WR_FLUSH_ERR && !told_) {
    told_ = true;
    counts_.completion_errors.fetch_add(1, std::memory_order_relaxed);
    failure_.on_queue_pair_failed(number(), out->status);
  }
  return true;
}

}  // namespace nvmeof::rdma::verbs
