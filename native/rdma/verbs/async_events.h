// Asynchronous events of RDMA devices. A device is opened once in a process, however many of our
// devices (addresses) it carries, so whoever reads its events passes them to all of them.
#pragma once
#include "rdma/verbs/library.h"

namespace nvmeof::rdma::verbs {

class Control;

void hear_async_events(Control* control);
// When it returns, no event is on its way to `control`.
void stop_async_events(Control* control);
// Reads what waits, without blocking (the descriptor is set so by hear_async_events).
void read_async_events(const Library& library, ibv_context* context);

}  // namespace nvmeof::rdma::verbs
