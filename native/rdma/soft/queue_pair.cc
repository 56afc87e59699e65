// State moves, posting and errors of a queue pair. Reactor's thread.
#include "rdma/soft/queue_pair.h"

#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

uint32_t service_of(QpType type) {
  constexpr uint32_t kServiceOf[] = {kReliable, kUnreliable, kDatagram};
  return kServiceOf[static_cast<unsigned>(type)];
}

}  // namespace

QueuePair::QueuePair(Transport& transport, uint32_t number, const QueuePairOptions& options)
    : transport_(transport),
      number_(number),
      type_(options.type),
      mtu_(options.type == QpType::Ud ? transport.config().port_mtu : 0),
      service_(service_of(options.type)),
      domain_(static_cast<SoftProtectionDomain*>(options.pd)->id()),
      send_cq_(static_cast<CompletionQueue*>(options.send_cq)),
      receive_cq_(static_cast<CompletionQueue*>(options.receive_cq)),
      srq_(static_cast<SharedReceiveQueue*>(options.srq)),
      context_(options.context),
      requester_(*this, options),
      responder_(*this, options) {}

QueuePair::~QueuePair() {
  requester_.reset();
  transport_.remove(*this);
}

Result<void> QueuePair::modify(const QpAttributes& attributes) {
  Result<void> checked = check_move(type_, state_, attributes);
  if (!checked) return checked.error();
  if (attributes.state == State::Err) {
    to_error();
    return {};
  }
  if (attributes.state == State::Reset) {
    requester_.reset();
    responder_.reset();
    transport_.forget(*this);
    error_reason_ = nullptr;
    established_ = false;
  }
  apply(attributes);
  state_ = attributes.state;
  if (state_ == State::Rts) transport_.schedule(*this);
  return {};
}

Result<void> QueuePair::bring_up(QpAttributes attributes) {
  for (const State to : {State::Init, State::Rtr, State::Rts}) {
    attributes.state = to;
    attributes.mask = required_attributes(type_, state_, to);
    if (Result<void> moved = modify(attributes); !moved) return moved;
  }
  return {};
}

void QueuePair::apply(const QpAttributes& attributes) {
  if ((attributes.mask & kAccessFlags) != 0) access_ = attributes.access;
  if ((attributes.mask & kAddressVector) != 0) flow_ = attributes.flow;
  if ((attributes.mask & kPathMtu) != 0) mtu_ = attributes.path_mtu;
  if ((attributes.mask & kDestinationQpn) != 0) destination_qpn_ = attributes.destination_qpn;
  if ((attributes.mask & kQKey) != 0) qkey_ = attributes.qkey;
  requester_.set_attributes(attributes);
  responder_.set_attributes(attributes);
}

Result<void> QueuePair::post_send(std::span<const SendWorkRequest> requests) {
  if (state_ == State::Reset || state_ == State::Init || state_ == State::Rtr)
    return Error{EINVAL, std::string("post_send: the queue pair is in ") + to_string(state_)};
  Result<void> posted = requester_.post(requests);
  if (state_ == State::Err || state_ == State::Sqe)
    requester_.flush(Status::FlushError);
  else
    transport_.schedule(*this);
  return posted;
}

Result<void> QueuePair::post_receive(std::span<const ReceiveWorkRequest> requests) {
  if (srq_ != nullptr)
    return Error{EINVAL, "post_receive: the queue pair takes from a shared receive queue"};
  if (state_ == State::Reset) return Error{EINVAL, "post_receive: the queue pair is in RESET"};
  Result<void> posted = responder_.post(requests);
  if (state_ == State::Err) responder_.flush_receives();
  return posted;
}

void QueuePair::to_error() {
  if (state_ == State::Err || state_ == State::Reset) return;
  state_ = State::Err;
  error_reason_ = "moved to ERR";
  requester_.flush(Status::FlushError);
  responder_.flush(Status::FlushError);
}

void QueuePair::enter_error(const char* reason, Status send_status, Status receive_status) {
  if (state_ == State::Err) return;
  state_ = State::Err;
  error_reason_ = reason;
  transport_.count().qp_errors++;
  requester_.flush(send_status);
  responder_.flush(receive_status);
  tell_error_ = true;
  transport_.tell(*this);
}

void QueuePair::fail_send(Status status) {
  if (reliable()) return enter_error("a work request failed locally", status, Status::FlushError);
  state_ = State::Sqe;
  requester_.flush(status);
}

void QueuePair::push(CompletionQueue& cq, WorkCompletion& completion) {
  completion.qp_num = number_;
  completion.qp_context = context_;
  if (cq.push(completion)) return;
  transport_.count().cq_overflows++;
  enter_error("a completion queue overflowed", Status::FlushError, Status::FlushError);
}

bool QueuePair::probe() {
  if (!reliable() || state_ != State::Rts || !requester_.probe()) return false;
  transport_.count().probes++;
  transport_.schedule(*this);
  return true;
}

}  // namespace nvmeof::rdma::soft
