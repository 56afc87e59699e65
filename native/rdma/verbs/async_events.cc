#include "rdma/verbs/async_events.h"

#include <fcntl.h>

#include <mutex>
#include <vector>

#include "rdma/verbs/control.h"

namespace nvmeof::rdma::verbs {

namespace {

std::mutex mutex;
std::vector<Control*> hearers;  // of all devices

bool names_queue_pair(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

}  // namespace

void hear_async_events(Control* control) {
  const int fd = control->context()->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const std::lock_guard<std::mutex> lock(mutex);
  hearers.push_back(control);
}

void stop_async_events(Control* control) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase(hearers, control);
}

void read_async_events(const Library& library, ibv_context* context) {
  const std::lock_guard<std::mutex> lock(mutex);
  ibv_async_event event{};
  while (library.get_async_event(context, &event) == 0) {
    // Until the event is given back, its queue pair cannot be destroyed.
    const uint32_t number = names_queue_pair(event.event_type) ? event.element.qp->qp_num : 0;
    for (Control* control : hearers) {
      if (control->context() == context) control->on_async_event(event.event_type, number);
    }
    library.ack_async_event(&event);
  }
}

}  // namespace nvmeof::rdma::verbs
