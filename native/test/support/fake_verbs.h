// A libibverbs and librdmacm without a kernel: the provider's table of functions filled with these,
// over devices, GIDs and events that a test sets up. Work requests are kept for the test to look
// at; it completes them, and says what connection management reports, in whatever order it likes.
// One at a time. The provider calls in from several threads: `mutex` guards everything here.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/verbs/library.h"

namespace nvmeof::test {

struct FakeGid {
  std::string text;  // an IPv6 address
  uint32_t type;     // ibv_gid_type
};

struct FakeDevice {
  std::string name;
  ibv_device device{};
  ibv_context context{};
  ibv_device_attr attributes{};
  ibv_port_attr port{};
  std::vector<FakeGid> gids;
  std::deque<ibv_async_event> events;
  bool has_windows = true;
};

struct FakeSend {
  ibv_send_wr wr;
  ibv_sge sge;  // the first
};

struct FakeQueuePair {
  ibv_qp qp{};
  std::string states;  // "INIT RTR RTS "
  std::deque<FakeSend> sends;
  std::deque<ibv_recv_wr> receives;
  uint32_t max_inline = 0;
  int access = 0;
};

struct FakeEvent {
  rdma_cm_event event{};
  std::vector<uint8_t> private_data;
};

struct FakeId {
  rdma_cm_id id{};
  std::string calls;  // "bind resolve_addr resolve_route connect "
  rdma_conn_param parameters{};
  std::vector<uint8_t> private_data;
};

class FakeVerbs {
 public:
  FakeVerbs();
  ~FakeVerbs();
  const rdma::verbs::Library& library() const { return library_; }

  // A RoCE v2 device that owns `address` (text), with every capability.
  FakeDevice& add_device(const char* name, const char* address);
  void make_iwarp(FakeDevice& device);

  // Faults: errno of the next call, 0: none.
  int fail_channel = 0, fail_reg_mr = 0, fail_create_qp = 0, fail_listen = 0, fail_connect = 0,
      fail_resolve = 0, fail_modify_to_rtr = 0, fail_post_send_at = -1;

  // Events. `id` of the connection they are about.
  void push(rdma_cm_event_type type, rdma_cm_id* id, int status = 0,
            std::vector<uint8_t> private_data = {});
  // A request of a peer at the listener: returns its new id.
  rdma_cm_id* push_request(rdma_cm_id* listener, std::vector<uint8_t> private_data = {});
  void push_async(FakeDevice& device, ibv_event_type type, ibv_qp* qp = nullptr);
  void complete(uint32_t qp_number, const ibv_wc& wc, bool send);

  // What there is. Waits, for a few seconds, until the id has made this call.
  rdma_cm_id* wait_for(const std::string& call);
  size_t live_ids();
  size_t live_regions();
  FakeQueuePair& qp(uint32_t number);
  std::string states(uint32_t number);
  FakeId& id_of(rdma_cm_id* id);
  bool alive(rdma_cm_id* id);

  std::mutex mutex;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::map<uint32_t, std::unique_ptr<FakeQueuePair>> queue_pairs;
  std::map<rdma_cm_id*, std::unique_ptr<FakeId>> ids;
  std::deque<std::unique_ptr<FakeEvent>> events;
  std::map<ibv_cq*, std::deque<ibv_wc>> completions;
  std::map<ibv_mr*, size_t> regions;
  uint32_t next_qp = 17, next_key = 0x100;
  int channel_fd = -1;
  int notified = 0, async_acknowledged = 0;

 private:
  rdma::verbs::Library library_;
};

}  // namespace nvmeof::test
