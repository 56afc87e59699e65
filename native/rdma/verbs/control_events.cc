// What rdma_cm's events do to a connection, as a table: an event in a state that does not expect it
// is counted and ignored.
#include <cerrno>
#include <cstring>
#include <string>

#include "rdma/connection_id.h"
#include "rdma/verbs/control.h"
#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

using S = ConnectionState;

constexpr unsigned kAny = (1u << kConnectionStates) - 1;
constexpr unsigned kOpening = bit(S::Resolving) | bit(S::Routing) | bit(S::Connecting) |
                              bit(S::Requested) | bit(S::Accepting);
constexpr unsigned kOpen = bit(S::Established) | bit(S::Disconnecting);
// Requests nobody has answered: beyond this many, new ones are refused.
constexpr size_t kRequestsMax = 1024;
// 0.64 ms until a peer whose SEND found no receive tries again; what rdma_cm would set is 655 ms.
constexpr uint8_t kRnrTimer = 12;
// What lies above is between the kernel and its drivers, and some kernels let it through.
constexpr int kUserAttributes = (1 << 21) - 1;

}  // namespace

struct Control::EventRow {
  rdma_cm_event_type type;
  unsigned expected;  // states
  void (Control::*run)(Connection& connection, const Event& event);
};

const Control::EventRow Control::kEventRows[] = {
    {RDMA_CM_EVENT_ADDR_RESOLVED, bit(S::Resolving), &Control::on_address},
    {RDMA_CM_EVENT_ROUTE_RESOLVED, bit(S::Routing), &Control::on_route},
    {RDMA_CM_EVENT_CONNECT_RESPONSE, bit(S::Connecting), &Control::on_response},
    {RDMA_CM_EVENT_ESTABLISHED, bit(S::Connecting) | bit(S::Accepting), &Control::on_established},
    {RDMA_CM_EVENT_ADDR_ERROR, bit(S::Resolving), &Control::on_failure},
    {RDMA_CM_EVENT_ROUTE_ERROR, bit(S::Routing), &Control::on_failure},
    {RDMA_CM_EVENT_CONNECT_ERROR, kOpening, &Control::on_failure},
    {RDMA_CM_EVENT_UNREACHABLE, kOpening, &Control::on_failure},
    {RDMA_CM_EVENT_REJECTED, kOpening, &Control::on_failure},
    {RDMA_CM_EVENT_DISCONNECTED, kOpen | bit(S::Accepting), &Control::on_disconnected},
    {RDMA_CM_EVENT_ADDR_CHANGE, kOpening | kOpen, &Control::on_lost},
    {RDMA_CM_EVENT_DEVICE_REMOVAL, kAny, &Control::on_lost},
    {RDMA_CM_EVENT_TIMEWAIT_EXIT, kAny, nullptr},
};

bool Control::read_cm_event() {
  rdma_cm_event* raw = nullptr;
  if (library_.get_cm_event(channel_, &raw) != 0) return false;
  const rdma_conn_param& conn = raw->param.conn;
  Event event{raw->event,           raw->status, raw->id, raw->listen_id, conn.responder_resources,
              conn.initiator_depth, {}};
  if (conn.private_data != nullptr) {
    const auto* const bytes = static_cast<const uint8_t*>(conn.private_data);
    event.private_data.assign(bytes, bytes + conn.private_data_len);
  }
  library_.ack_cm_event(raw);
  dispatch(event);
  return true;
}

void Control::dispatch(const Event& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(event);
  Connection* const connection = find(event.cm);
  if (connection == nullptr) {
    if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {  // of a listener, or of the device's own id
      removed_ = true;
      trouble_ = "the RDMA device was removed";
      end_all(trouble_);
    }
    return;
  }
  for (const EventRow& row : kEventRows) {
    if (row.type != event.type || (row.expected & bit(connection->state)) == 0) continue;
    if (row.run != nullptr) (this->*row.run)(*connection, event);
    return;
  }
  unexpected_.fetch_add(1, std::memory_order_relaxed);
}

// ---- Active side

void Control::on_address(Connection& connection, const Event& event) {
  if (event.cm->verbs != context())
    return fail(connection, {ConnectFailure::Unreachable,
                             0,
                             {},
                             "the way to the peer leads through another RDMA device than that of " +
                                 text_of(options_.address) + ": check ip route"});
  move(connection, S::Routing);
  if (library_.resolve_route(connection.cm, static_cast<int>(options_.connect_timeout_ms)) != 0)
    fail(connection, failure_of(RDMA_CM_EVENT_ROUTE_ERROR, -errno, {}, false));
}

void Control::on_route(Connection& connection, const Event&) {
  move(connection, S::Connecting);
  rdma_conn_param parameters = parameters_of(connection, options_.capabilities);
  if (library_.connect(connection.cm, &parameters) != 0)
    fail(connection,
         {ConnectFailure::NoResources, 0, {}, "rdma_connect failed" + reason_of(errno)});
}

// A REP came: the queue pair goes up, then the RTU tells the peer so. iWARP has no such step.
void Control::on_response(Connection& connection, const Event& event) {
  Result<void> up = bring_up(connection, false);
  if (up && library_.establish(connection.cm) != 0)
    up = Error{errno, "rdma_establish failed" + reason_of(errno)};
  if (!up) return fail(connection, {ConnectFailure::NoResources, 0, {}, up.error().message});
  on_established(connection, event);
}

void Control::on_established(Connection& connection, const Event& event) {
  const bool active = connection.state == S::Connecting;
  move(connection, S::Established);
  connection.deadline = ~0ull;
  connection.qp->note(State::Rts);
  Shard& shard = *shards_[connection.shard];
  if (!active) {
    shard.post([&shard, id = connection.id] {
      if (ConnectionHandler* const handler = shard.find(id)) handler->on_established(id);
    });
    return;
  }
  // rdma_cm turns the peer's two numbers into ours; the interface names them as the peer sent them.
  const ConnectResponse response{event.initiator_depth, event.responder_resources, {}};
  shard.post([&shard, id = connection.id, response, data = event.private_data] {
    ConnectionHandler* const handler = shard.find(id);
    if (handler == nullptr) return;
    ConnectResponse out = response;
    out.private_data = data;
    handler->on_connect_response(id, out);
  });
}

void Control::on_failure(Connection& connection, const Event& event) {
  fail(connection,
       failure_of(event.type, event.status, event.private_data, options_.fabric == Fabric::Iwarp));
}

// ---- Passive side

void Control::on_request(const Event& event) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  const Listener* listener = nullptr;
  for (const Listener& entry : listeners_) {
    if (entry.cm == event.listener) listener = &entry;
  }
  // Destroying it refuses it.
  if (listener == nullptr || requests_.size() >= kRequestsMax || event.cm->verbs != context()) {
    library_.destroy_id(event.cm);
    return;
  }
  const ConnectionId id = new_connection_id();
  Connection& connection = connections_[id];
  connection.id = id;
  connection.cm = event.cm;
  connection.state = S::Requested;
  connection.listener = listener->id;
  by_cm_[event.cm] = id;
  counts_.connections.store(connections_.size(), std::memory_order_relaxed);
  requests_[id] = listener->handler;

  ConnectRequest request{};
  request.id = id;
  request.listener = listener->id;
  request.peer = storage_of(event.cm->route.addr.dst_addr);
  request.local = storage_of(event.cm->route.addr.src_addr);
  request.peer_port = port_of(event.cm->route.addr.dst_addr);
  request.responder_resources = event.initiator_depth;  // as above: the peer's own numbers
  request.initiator_depth = event.responder_resources;
  shards_[0]->post([this, request, data = event.private_data] {
    const std::lock_guard<std::recursive_mutex> held(tables_mutex_);
    const auto found = requests_.find(request.id);
    if (found == requests_.end()) return;  // the listener closed
    ConnectRequest out = request;
    out.private_data = data;
    found->second->on_connect_request(out);
  });
}

// ---- Both sides

Result<void> Control::bring_up(Connection& connection, bool passive) {
  if (options_.fabric == Fabric::Iwarp) {  // the kernel moves the queue pair with the connection
    connection.qp->note(State::Rts);
    return {};
  }
  if (auto ready = step(connection, IBV_QPS_RTR, passive); !ready) return ready;
  return step(connection, IBV_QPS_RTS, passive);
}

Result<void> Control::step(Connection& connection, ibv_qp_state to, bool passive) {
  ibv_qp_attr attributes{};
  attributes.qp_state = to;
  int mask = 0;
  if (library_.init_qp_attr(connection.cm, &attributes, &mask) != 0)
    return Error{errno, "rdma_init_qp_attr failed" + reason_of(errno)};
  mask &= kUserAttributes;
  if (passive) {  // rdma_cm learns these with the accept that follows
    const rdma_conn_param parameters = parameters_of(connection, options_.capabilities);
    attributes.max_dest_rd_atomic = parameters.responder_resources;
    attributes.max_rd_atomic = parameters.initiator_depth;
  }
  attributes.min_rnr_timer = kRnrTimer;
  return connection.qp->modify(&attributes, mask, to == IBV_QPS_RTR ? State::Rtr : State::Rts);
}

void Control::on_disconnected(Connection& connection, const Event&) {
  const bool ours = connection.state == S::Disconnecting;
  if (connection.state == S::Accepting)
    return fail(connection, {ConnectFailure::Cancelled, 0, {}, "the peer gave the connection up"});
  end(connection, ours ? connection.why : "the peer disconnected");
}

void Control::on_lost(Connection& connection, const Event& event) {
  const bool removal = event.type == RDMA_CM_EVENT_DEVICE_REMOVAL;
  if (removal) {
    removed_ = true;
    trouble_ = "the RDMA device was removed";
  }
  if ((bit(connection.state) & kOpen) == 0) return on_failure(connection, event);
  end(connection, removal ? trouble_ : "the address moved to another RDMA device");
}

}  // namespace nvmeof::rdma::verbs
