// Whose capsules become commands next. A capsule that arrives waits at its queue; each round takes
// from every queue that had none waiting before (a host that asks for little, an admin queue) and
// then one turn from one of the others, in order: deficit round robin with the sparse queues first,
// as in FQ-CoDel (RFC 8290). So a command waits for a turn of its neighbours, not for all that they
// have sent.
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

namespace {

// A train of small commands, or one large one.
constexpr ServiceTurn kBusyTurn{kTrain, kTrain * 4096};
constexpr ServiceTurn kSparseTurn{4, 4 * 4096};
constexpr ServiceTurn kAloneTurn{32, kNoLimit};  // small rounds sustain themselves

}  // namespace

void ServiceList::push_back(TargetQueue* queue) {
  queue->service_next = nullptr;
  (tail ? tail->service_next : head) = queue;
  tail = queue;
}

TargetQueue* ServiceList::pop_front() {
  TargetQueue* const queue = head;
  if (queue == nullptr) return nullptr;
  head = queue->service_next;
  if (head == nullptr) tail = nullptr;
  return queue;
}

void ServiceList::remove(TargetQueue* queue) {
  TargetQueue* previous = nullptr;
  for (TargetQueue* at = head; at != nullptr; previous = at, at = at->service_next) {
    if (at != queue) continue;
    (previous ? previous->service_next : head) = at->service_next;
    if (tail == at) tail = previous;
    return;
  }
}

// Without a free slot it comes back when a command is released.
void TargetEngineImpl::await_service(TargetQueue* queue, ServiceList* list) {
  if (queue->awaits_service || queue->waiting_count == 0 || queue->free.empty()) return;
  queue->awaits_service = true;
  list->push_back(queue);
}

void TargetEngineImpl::forget_service(TargetQueue* queue) {
  if (!queue->awaits_service) return;
  queue->awaits_service = false;
  sparse_.remove(queue);
  busy_.remove(queue);
}

bool TargetEngineImpl::one_waits() const {
  const TargetQueue* const first = sparse_.head ? sparse_.head : busy_.head;
  return first != nullptr && first->service_next == nullptr &&
         (sparse_.head == nullptr || busy_.head == nullptr);
}

// Capsules that wait hold their receives. When those run short, a host whose SEND finds none is
// told to come back later, whoever it is: then everything is taken at once.
bool TargetEngineImpl::receives_short() const {
  return posted_receives_ < limits_.shared_receives / 4;
}

int TargetEngineImpl::serve_queues() {
  if (sparse_.empty() && busy_.empty()) return 0;
  int taken = 0;
  if (receives_short()) {
    while (TargetQueue* const queue = sparse_.pop_front()) taken += serve(queue, kWholeTurn);
    while (TargetQueue* const queue = busy_.pop_front()) taken += serve(queue, kWholeTurn);
  } else if (one_waits()) {
    taken = serve((sparse_.empty() ? busy_ : sparse_).pop_front(), kAloneTurn);
  } else {
    // What a turn leaves waiting goes behind the others; a turn adds nothing to `sparse_`.
    const bool one_is_sparse = !sparse_.empty();
    while (TargetQueue* const queue = sparse_.pop_front()) taken += serve(queue, kSparseTurn);
    // Their answers leave before those of a busy queue's turn are made, if the last round had one.
    busy_rests_ = one_is_sparse && !busy_rests_;
    if (busy_rests_) return taken;
    if (TargetQueue* const queue = busy_.pop_front()) taken += serve(queue, kBusyTurn);
  }
  return taken;
}

int TargetEngineImpl::serve(TargetQueue* queue, const ServiceTurn& turn) {
  queue->awaits_service = false;
  const int taken = take_waiting(queue, turn);
  await_service(queue, &busy_);
  return taken;
}

// Makes commands of waiting capsules. Returns how many.
int TargetEngineImpl::take_waiting(TargetQueue* queue, const ServiceTurn& turn) {
  unsigned taken = 0;
  uint64_t bytes = 0;
  while (queue->waiting_count > 0 && !queue->free.empty() && taken < turn.commands &&
         bytes < turn.bytes) {
    const WaitingCapsule capsule = queue->pop_waiting();
    taken++;
    if (!queue->alive()) {
      repost(capsule.receive);
      continue;
    }
    bytes += take_capsule(queue, capsule);
  }
  return static_cast<int>(taken);
}

}  // namespace nvmeof::nvmf
