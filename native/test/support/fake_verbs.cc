#include "support/fake_verbs.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace nvmeof::test {

namespace {

FakeVerbs* fake = nullptr;
using Lock = std::lock_guard<std::mutex>;

int failed(int code) {
  errno = code;
  return -1;
}
// Takes the fault: it happens once.
bool due(int* fault) {
  if (*fault == 0) return false;
  errno = std::exchange(*fault, 0);
  return true;
}
void signal(int fd) {
  const uint64_t one = 1;
  if (write(fd, &one, sizeof one) != sizeof one) std::abort();
}
FakeDevice& device_of(ibv_context* context) {
  for (auto& device : fake->devices) {
    if (&device->context == context) return *device;
  }
  std::abort();
}
ibv_gid gid_of(const std::string& text) {
  ibv_gid gid{};
  if (inet_pton(AF_INET6, text.c_str(), gid.raw) != 1) std::abort();
  return gid;
}
std::string gid_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
    return std::string("::ffff:") + text;
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
            sizeof text);
  return text;
}

// ---- libibverbs

int fork_init() {
  return 0;
}
ibv_device** get_device_list(int* count) {
  const Lock lock(fake->mutex);
  *count = static_cast<int>(fake->devices.size());
  auto** list = new ibv_device* [fake->devices.size() + 1] {};
  for (size_t i = 0; i < fake->devices.size(); i++) list[i] = &fake->devices[i]->device;
  return list;
}
void free_device_list(ibv_device** list) {
  delete[] list;
}
const char* get_device_name(ibv_device* device) {
  return device->name;
}
ibv_context* open_device(ibv_device* device) {
  for (auto& each : fake->devices) {
    if (&each->device == device) return &each->context;
  }
  return nullptr;
}
int close_device(ibv_context*) {
  return 0;
}
int query_device(ibv_context* context, ibv_device_attr* attributes) {
  *attributes = device_of(context).attributes;
  return 0;
}
int query_port(ibv_context* context, uint8_t, _compat_ibv_port_attr* attributes) {
  const Lock lock(fake->mutex);
  std::memcpy(attributes, &device_of(context).port, offsetof(ibv_port_attr, flags));
  return 0;
}
int query_gid_ex(ibv_context* context, uint32_t, uint32_t index, ibv_gid_entry* entry, uint32_t,
                 size_t) {
  const Lock lock(fake->mutex);
  const auto& gids = device_of(context).gids;
  if (index >= gids.size()) return ENODATA;
  entry->gid = gid_of(gids[index].text);
  entry->gid_type = gids[index].type;
  return 0;
}
int get_async_event(ibv_context* context, ibv_async_event* event) {
  const Lock lock(fake->mutex);
  auto& events = device_of(context).events;
  uint64_t ignored;
  [[maybe_unused]] const ssize_t drained = read(context->async_fd, &ignored, sizeof ignored);
  if (events.empty()) return failed(EAGAIN);
  *event = events.front();
  events.pop_front();
  return 0;
}
void ack_async_event(ibv_async_event*) {
  const Lock lock(fake->mutex);
  fake->async_acknowledged++;
}
ibv_pd* alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
int dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}
ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int) {
  const Lock lock(fake->mutex);
  if (due(&fake->fail_reg_mr)) return nullptr;
  auto* mr = new ibv_mr{};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = mr->rkey = fake->next_key++;
  fake->regions[mr] = length;
  return mr;
}
int dereg_mr(ibv_mr* mr) {
  const Lock lock(fake->mutex);
  fake->regions.erase(mr);
  delete mr;
  return 0;
}
ibv_comp_channel* create_comp_channel(ibv_context* context) {
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_NONBLOCK);
  return channel;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete channel;
  return 0;
}
ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
  const Lock lock(fake->mutex);
  auto* cq = new ibv_cq{};
  cq->context = context;
  cq->channel = channel;
  fake->completions[cq];
  return cq;
}
int destroy_cq(ibv_cq* cq) {
  const Lock lock(fake->mutex);
  fake->completions.erase(cq);
  delete cq;
  return 0;
}
int get_cq_event(ibv_comp_channel* channel, ibv_cq**, void**) {
  uint64_t ignored;
  return read(channel->fd, &ignored, sizeof ignored) == sizeof ignored ? 0 : -1;
}
void ack_cq_events(ibv_cq*, unsigned) {}
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr*) {
  auto* srq = new ibv_srq{};
  srq->context = pd->context;
  return srq;
}
int destroy_srq(ibv_srq* srq) {
  delete srq;
  return 0;
}
ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const Lock lock(fake->mutex);
  if (due(&fake->fail_create_qp)) return nullptr;
  auto made = std::make_unique<FakeQueuePair>();
  made->qp.context = pd->context;
  made->qp.pd = pd;
  made->qp.send_cq = attributes->send_cq;
  made->qp.recv_cq = attributes->recv_cq;
  made->qp.srq = attributes->srq;
  made->qp.qp_num = fake->next_qp++;
  made->max_inline = attributes->cap.max_inline_data;
  ibv_qp* const qp = &made->qp;
  fake->queue_pairs[qp->qp_num] = std::move(made);
  return qp;
}
int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const Lock lock(fake->mutex);
  if (attributes->qp_state == IBV_QPS_RTR && due(&fake->fail_modify_to_rtr)) return errno;
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  FakeQueuePair& own = *fake->queue_pairs.at(qp->qp_num);
  own.states += std::string(kNames[attributes->qp_state]) + " ";
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) own.access = static_cast<int>(attributes->qp_access_flags);
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  const Lock lock(fake->mutex);
  fake->queue_pairs.erase(qp->qp_num);
  return 0;
}

// ---- through the context's operations

int poll_cq(ibv_cq* cq, int count, ibv_wc* out) {
  const Lock lock(fake->mutex);
  auto& waiting = fake->completions.at(cq);
  int given = 0;
  for (; given < count && !waiting.empty(); given++) {
    out[given] = waiting.front();
    waiting.pop_front();
  }
  return given;
}
int req_notify_cq(ibv_cq*, int) {
  fake->notified++;
  return 0;
}
int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  const Lock lock(fake->mutex);
  FakeQueuePair& own = *fake->queue_pairs.at(qp->qp_num);
  for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    if (fake->fail_post_send_at-- == 0) {
      *bad = wr;
      return ENOMEM;
    }
    own.sends.push_back({*wr, wr->num_sge > 0 ? wr->sg_list[0] : ibv_sge{}});
  }
  return 0;
}
int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr**) {
  const Lock lock(fake->mutex);
  for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next)
    fake->queue_pairs.at(qp->qp_num)->receives.push_back(*wr);
  return 0;
}
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) {
  return 0;
}
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type) {
  const Lock lock(fake->mutex);
  if (!device_of(pd->context).has_windows) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  auto* mw = new ibv_mw{};
  mw->context = pd->context;
  mw->rkey = fake->next_key++ << 8;
  return mw;
}
int dealloc_mw(ibv_mw* mw) {
  delete mw;
  return 0;
}

// ---- librdmacm

rdma_event_channel* create_event_channel() {
  const Lock lock(fake->mutex);
  if (due(&fake->fail_channel)) return nullptr;
  auto* channel = new rdma_event_channel{};
  fake->channel_fd = channel->fd = eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE);
  return channel;
}
void destroy_event_channel(rdma_event_channel* channel) {
  close(channel->fd);
  delete channel;
}
int note(rdma_cm_id* id, const char* call) {
  const Lock lock(fake->mutex);
  fake->ids.at(id)->calls += std::string(call) + " ";
  return 0;
}
void keep(rdma_cm_id* id, const rdma_conn_param* parameters) {
  const Lock lock(fake->mutex);
  FakeId& own = *fake->ids.at(id);
  own.parameters = *parameters;
  const auto* data = static_cast<const uint8_t*>(parameters->private_data);
  own.private_data.assign(data, data + parameters->private_data_len);
}
int create_id(rdma_event_channel* channel, rdma_cm_id** id, void*, rdma_port_space) {
  const Lock lock(fake->mutex);
  auto made = std::make_unique<FakeId>();
  made->id.channel = channel;
  *id = &made->id;
  fake->ids[&made->id] = std::move(made);
  return 0;
}
int destroy_id(rdma_cm_id* id) {
  const Lock lock(fake->mutex);
  if (fake->ids.erase(id) != 1) std::abort();
  return 0;
}
int bind_addr(rdma_cm_id* id, sockaddr* address) {
  note(id, "bind");
  const Lock lock(fake->mutex);
  const std::string wanted = gid_text(address);
  for (auto& device : fake->devices) {
    for (const FakeGid& gid : device->gids) {
      if (gid.text != wanted && gid.text != "bound:" + wanted) continue;
      id->verbs = &device->context;
      id->port_num = 1;
      return 0;
    }
  }
  return failed(ENODEV);
}
int resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr*, int) {
  if (due(&fake->fail_resolve)) return -1;
  const int bound = bind_addr(id, from);
  note(id, "resolve_addr");
  return bound;
}
int resolve_route(rdma_cm_id* id, int) {
  return note(id, "resolve_route");
}
int connect(rdma_cm_id* id, rdma_conn_param* parameters) {
  if (due(&fake->fail_connect)) return -1;
  keep(id, parameters);
  return note(id, "connect");
}
int listen(rdma_cm_id* id, int) {
  if (due(&fake->fail_listen)) return -1;
  return note(id, "listen");
}
int accept(rdma_cm_id* id, rdma_conn_param* parameters) {
  keep(id, parameters);
  return note(id, "accept");
}
int reject(rdma_cm_id* id, const void*, uint8_t) {
  return note(id, "reject");
}
int establish(rdma_cm_id* id) {
  return note(id, "establish");
}
int disconnect(rdma_cm_id* id) {
  return note(id, "disconnect");
}
int notify(rdma_cm_id* id, ibv_event_type) {
  return note(id, "notify");
}
int init_qp_attr(rdma_cm_id*, ibv_qp_attr* attributes, int* mask) {
  *mask = IBV_QP_STATE;
  if (attributes->qp_state == IBV_QPS_INIT) *mask |= IBV_QP_ACCESS_FLAGS;
  return 0;
}
int set_option(rdma_cm_id*, int, int, void*, size_t) {
  return 0;
}
int get_cm_event(rdma_event_channel* channel, rdma_cm_event** out) {
  const Lock lock(fake->mutex);
  uint64_t ignored;
  if (fake->events.empty() || read(channel->fd, &ignored, sizeof ignored) < 0)
    return failed(EAGAIN);
  FakeEvent* const event = fake->events.front().release();
  fake->events.pop_front();
  event->event.param.conn.private_data = event->private_data.data();
  event->event.param.conn.private_data_len = static_cast<uint8_t>(event->private_data.size());
  *out = &event->event;
  return 0;
}
int ack_cm_event(rdma_cm_event* event) {
  delete reinterpret_cast<FakeEvent*>(event);  // its first member
  return 0;
}

}  // namespace

FakeVerbs::FakeVerbs() {
  if (fake != nullptr) std::abort();
  fake = this;
  library_ = {fork_init,
              get_device_list,
              free_device_list,
              get_device_name,
              open_device,
              close_device,
              query_device,
              query_port,
              query_gid_ex,
              get_async_event,
              ack_async_event,
              alloc_pd,
              dealloc_pd,
              reg_mr,
              dereg_mr,
              create_comp_channel,
              destroy_comp_channel,
              create_cq,
              destroy_cq,
              get_cq_event,
              ack_cq_events,
              create_srq,
              destroy_srq,
              create_qp,
              modify_qp,
              destroy_qp,
              create_event_channel,
              destroy_event_channel,
              create_id,
              destroy_id,
              bind_addr,
              resolve_addr,
              resolve_route,
              connect,
              listen,
              accept,
              reject,
              establish,
              disconnect,
              notify,
              init_qp_attr,
              set_option,
              get_cm_event,
              ack_cm_event};
}

FakeVerbs::~FakeVerbs() {
  for (auto& device : devices) close(device->context.async_fd);
  fake = nullptr;
}

FakeDevice& FakeVerbs::add_device(const char* name, const char* address) {
  FakeDevice& made = *devices.emplace_back(std::make_unique<FakeDevice>());
  made.name = name;
  std::snprintf(made.device.name, sizeof made.device.name, "%s", name);
  made.device.transport_type = IBV_TRANSPORT_IB;
  made.context.device = &made.device;
  made.context.num_comp_vectors = 1;
  made.context.async_fd = eventfd(0, EFD_NONBLOCK);
  ibv_context_ops& ops = made.context.ops;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  ops.post_srq_recv = post_srq_recv;
  ops.alloc_mw = alloc_mw;
  ops.dealloc_mw = dealloc_mw;
  made.attributes.phys_port_cnt = 1;
  made.attributes.max_sge = made.attributes.max_sge_rd = 32;
  made.attributes.max_qp_wr = made.attributes.max_cqe = made.attributes.max_srq_wr = 32768;
  made.attributes.max_srq = 64;
  made.attributes.max_qp_rd_atom = made.attributes.max_qp_init_rd_atom = 128;
  made.attributes.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  made.port.state = IBV_PORT_ACTIVE;
  made.port.active_mtu = IBV_MTU_4096;
  made.port.link_layer = IBV_LINK_LAYER_ETHERNET;
  made.port.gid_tbl_len = 8;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  std::string gid = address;
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) gid = std::string("::ffff:") + address;
  made.gids = {{"fe80::5054:ff:fe12:3410", IBV_GID_TYPE_ROCE_V2}, {gid, IBV_GID_TYPE_ROCE_V2}};
  return made;
}

void FakeVerbs::make_iwarp(FakeDevice& device) {
  device.device.transport_type = IBV_TRANSPORT_IWARP;
  device.attributes.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS;
}

void FakeVerbs::push(rdma_cm_event_type type, rdma_cm_id* id, int status,
                     std::vector<uint8_t> private_data) {
  {
    const Lock lock(mutex);
    auto made = std::make_unique<FakeEvent>();
    made->event.event = type;
    made->event.id = id;
    made->event.status = status;
    made->event.param.conn.responder_resources = 3;
    made->event.param.conn.initiator_depth = 5;
    made->private_data = std::move(private_data);
    events.push_back(std::move(made));
  }
  signal(channel_fd);
}

rdma_cm_id* FakeVerbs::push_request(rdma_cm_id* listener, std::vector<uint8_t> private_data) {
  auto made = std::make_unique<FakeId>();
  rdma_cm_id* const id = &made->id;
  {
    const Lock lock(mutex);
    id->verbs = listener->verbs;
    id->port_num = 1;
    auto& peer = reinterpret_cast<sockaddr_in&>(id->route.addr.dst_addr);
    peer.sin_family = AF_INET;
    peer.sin_port = htons(4711);
    reinterpret_cast<sockaddr_in&>(id->route.addr.src_addr).sin_family = AF_INET;
    ids[id] = std::move(made);
    auto event = std::make_unique<FakeEvent>();
    event->event.event = RDMA_CM_EVENT_CONNECT_REQUEST;
    event->event.id = id;
    event->event.listen_id = listener;
    event->event.param.conn.responder_resources = 3;
    event->event.param.conn.initiator_depth = 5;
    event->private_data = std::move(private_data);
    events.push_back(std::move(event));
  }
  signal(channel_fd);
  return id;
}

void FakeVerbs::push_async(FakeDevice& device, ibv_event_type type, ibv_qp* qp) {
  {
    const Lock lock(mutex);
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = qp;
    device.events.push_back(event);
  }
  signal(device.context.async_fd);
}

void FakeVerbs::complete(uint32_t qp_number, const ibv_wc& given, bool send) {
  const Lock lock(mutex);
  FakeQueuePair& own = *queue_pairs.at(qp_number);
  ibv_wc wc = given;
  wc.qp_num = qp_number;
  completions.at(send ? own.qp.send_cq : own.qp.recv_cq).push_back(wc);
}

rdma_cm_id* FakeVerbs::wait_for(const std::string& call) {
  for (int i = 0; i < 5000; i++) {
    {
      const Lock lock(mutex);
      for (const auto& [id, own] : ids) {
        if (own->calls.size() > call.size() && own->calls.ends_with(call + " ")) return id;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return nullptr;
}

size_t FakeVerbs::live_ids() {
  const Lock lock(mutex);
  return ids.size();
}
size_t FakeVerbs::live_regions() {
  const Lock lock(mutex);
  return regions.size();
}
FakeQueuePair& FakeVerbs::qp(uint32_t number) {
  return *queue_pairs.at(number);
}
std::string FakeVerbs::states(uint32_t number) {
  const Lock lock(mutex);
  return queue_pairs.at(number)->states;
}
FakeId& FakeVerbs::id_of(rdma_cm_id* id) {
  return *ids.at(id);
}
bool FakeVerbs::alive(rdma_cm_id* id) {
  const Lock lock(mutex);
  return ids.contains(id);
}

}  // namespace nvmeof::test
