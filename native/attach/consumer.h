// Who uses the lanes of an attached namespace on behalf of other processes: a server of some
// protocol. All on a control thread.
#pragma once
#include "attach/namespace_lane.h"

namespace nvmeof::attach {

struct LaneOnReactor {
  reactor::Reactor* reactor;
  NamespaceLane* lane;
};

class Consumer {
 public:
  virtual ~Consumer() = default;  // after wait_stopped()
  // No new requests to the lanes from soon on.
  virtual void begin_stop() = 0;
  // Until the last request has ended, and nothing of it is on a reactor. Requests end when the
  // controller answers or their queue closes.
  virtual void wait_stopped() = 0;
};

}  // namespace nvmeof::attach
