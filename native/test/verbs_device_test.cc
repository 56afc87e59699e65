// The verbs provider over fake libraries: which device an address gets, what it says when there is
// none, capabilities, registration, work requests and completions.
#include <sys/resource.h>

#include "rdma/verbs/text.h"
#include "support/verbs_rig.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

bool says(const Result<void>& result, int code, std::initializer_list<const char*> parts) {
  if (result) return false;
  bool all = result.error().code == code;
  for (const char* part : parts) all &= result.error().message.find(part) != std::string::npos;
  if (!all)
    std::fprintf(stderr, "error %d: %s\n", result.error().code, result.error().message.c_str());
  return all;
}

SendWorkRequest send_of(uint64_t wr_id, Opcode opcode, const Sge* sge, uint8_t flags) {
  SendWorkRequest request{};
  request.wr_id = wr_id;
  request.opcode = opcode;
  request.flags = flags;
  request.num_sge = sge != nullptr ? 1 : 0;
  request.sg_list = sge;
  return request;
}

}  // namespace

// ---- Opening

TEST(without_a_device_it_says_so) {
  VerbsRig rig;
  CHECK(says(rig.open(), ENODEV, {"10.9.0.1", "::ffff:10.9.0.1", "there is no RDMA device"}));
}

TEST(an_address_of_no_device_is_told_with_both_gids) {
  VerbsRig rig("10.9.0.7");
  rig.fake.add_device("rxe0", "10.9.0.1");
  CHECK(says(rig.open(), ENODEV,
             {"10.9.0.7", "::ffff:10.9.0.7", "rxe0 port 1 has", "::ffff:10.9.0.1 (RoCE v2)"}));
}

TEST(a_device_whose_gid_is_missing_names_what_it_wants_and_has) {
  VerbsRig rig;
  FakeDevice& device = rig.fake.add_device("rxe0", "10.9.0.1");
  device.gids = {{"fe80::1", IBV_GID_TYPE_ROCE_V2}, {"::ffff:10.9.0.1", IBV_GID_TYPE_ROCE_V1}};
  CHECK(says(rig.open(), EADDRNOTAVAIL,
             {"::ffff:10.9.0.1 of 10.9.0.1 for RoCE v1 only", "fe80::1 (RoCE v2)"}));
}

TEST(an_ipv6_address_wants_its_own_gid) {
  VerbsRig rig("fd09::1");
  rig.fake.add_device("rxe0", "10.9.0.1");
  CHECK(says(rig.open(), ENODEV, {"fd09::1, whose RoCE GID would be fd09::1", "::ffff:10.9.0.1"}));
  rig.fake.devices[0]->gids.push_back({"fd09::1", IBV_GID_TYPE_ROCE_V2});
  CHECK(static_cast<bool>(rig.open()));
}

TEST(connection_management_that_cannot_be_used_is_told_when_the_address_is_the_devices) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  rig.fake.fail_channel = ENOENT;
  CHECK(says(rig.open(), ENOENT, {"modprobe rdma_ucm"}));
  VerbsRig* const other = &rig;
  other->options.address = ip("10.9.0.9");
  rig.fake.fail_channel = ENOENT;
  CHECK(says(rig.open(), ENODEV, {"10.9.0.9"}));  // then auto goes on with soft
}

TEST(what_the_provider_cannot_do_is_refused) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  rig.options.path_mtu = 1024;
  CHECK(says(rig.open(), EINVAL, {"rxe0 port 1 is 4096", "1024"}));
  rig.options.path_mtu = 4096;
  rig.options.pcap_path = "/nowhere";
  CHECK(says(rig.open(), EINVAL, {"sees no packets"}));
  rig.options.pcap_path.clear();
  CHECK(static_cast<bool>(rig.open()));
}

TEST(capabilities_are_the_devices) {
  VerbsRig rig;
  FakeDevice& device = rig.fake.add_device("rxe0", "10.9.0.1");
  device.attributes.max_sge_rd = 1;
  device.attributes.max_qp_rd_atom = 300;
  device.attributes.max_srq = 0;
  device.has_windows = false;  // although it says that it has
  REQUIRE(rig.open());
  const Capabilities& can = rig.device->capabilities();
  CHECK(can.fabric == Fabric::RoceV2);
  CHECK_EQ(can.max_sge, 16u);
  CHECK_EQ(can.max_read_sge, 1u);
  CHECK_EQ(can.max_responder_resources, 255u);
  CHECK_EQ(can.max_initiator_depth, 128u);
  CHECK_EQ(can.max_inline, 64u);
  CHECK(can.send_with_invalidate && !can.memory_windows && !can.srq && can.receiver_not_ready);
  CHECK(rig.device->name() == "rxe0");
}

TEST(windows_of_rdma_rxe_are_left_alone) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1").attributes.vendor_id = 0xffffff;
  REQUIRE(rig.open());
  CHECK(!rig.device->capabilities().memory_windows);
  CHECK(rig.device->capabilities().send_with_invalidate);
}

TEST(siw_takes_no_inline_data_with_an_invalidation) {
  VerbsRig rig;
  auto& siw = rig.fake.add_device("siw0", "10.9.0.1");
  rig.fake.make_iwarp(siw);
  siw.attributes.vendor_id = 0x626d74;
  REQUIRE(rig.open());
  CHECK(rig.device->capabilities().send_with_invalidate);
  CHECK(!rig.device->capabilities().inline_with_invalidate);
}

TEST(inline_data_is_found_by_trying) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  rig.fake.fail_create_qp = EINVAL;
  REQUIRE(rig.open());
  CHECK_EQ(rig.device->capabilities().max_inline, 32u);
}

// ---- Memory

TEST(a_small_memlock_limit_is_told_with_its_remedy) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  rlimit before{};
  getrlimit(RLIMIT_MEMLOCK, &before);
  const rlimit small{65536, before.rlim_max};
  setrlimit(RLIMIT_MEMLOCK, &small);
  rig.fake.fail_reg_mr = ENOMEM;
  auto pd = rig.device->allocate_pd();
  REQUIRE(pd);
  char bytes[64];
  const auto region = (*pd)->register_memory(bytes, sizeof bytes, kLocalWrite);
  CHECK(says(region ? Result<void>() : Result<void>(region.error()), ENOMEM,
             {"64 bytes", "allows 65536", "ulimit -l unlimited", "LimitMEMLOCK"}));
  rig.fake.fail_reg_mr = EFAULT;
  const auto other = (*pd)->register_memory(bytes, sizeof bytes, kLocalWrite);
  CHECK(!other && other.error().message.find("ulimit") == std::string::npos);
  setrlimit(RLIMIT_MEMLOCK, &before);
}

TEST(a_domain_goes_after_the_last_object_in_it) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  auto pd = rig.device->allocate_pd();
  char bytes[64];
  auto region = (*pd)->register_memory(bytes, sizeof bytes, kLocalWrite | kWindowBind);
  auto window = (*pd)->allocate_window();
  REQUIRE(region && window);
  pd->reset();
  CHECK_EQ(rig.counter("verbs.memory.protection_domains"), 1u);
  region->reset();
  window->reset();
  CHECK_EQ(rig.counter("verbs.memory.protection_domains"), 0u);
  CHECK_EQ(rig.fake.live_regions(), 0u);
}

// ---- Work requests

TEST(work_requests_are_posted_in_one_chain_and_retire_in_order) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  REQUIRE(rig.establish());
  const uint32_t number = rig.qp->number();
  rig.run([&] {
    const Sge sge{0x1000, 16, 7};
    SendWorkRequest requests[] = {send_of(1, Opcode::RdmaWrite, &sge, 0),
                                  send_of(2, Opcode::SendWithInvalidate, &sge, kSignaled)};
    requests[0].remote_address = 0xABCD;
    requests[0].rkey = 99;
    requests[1].imm_or_rkey = 98;
    CHECK(static_cast<bool>(rig.qp->post_send(requests)));
    CHECK_EQ(rig.qp->outstanding_sends(), 2u);
    const auto& sends = rig.fake.qp(number).sends;
    REQUIRE(sends.size() == 2);
    CHECK(sends[0].wr.opcode == IBV_WR_RDMA_WRITE && sends[0].wr.send_flags == 0);
    CHECK(sends[0].wr.wr.rdma.remote_addr == 0xABCD && sends[0].wr.wr.rdma.rkey == 99);
    CHECK(sends[1].wr.opcode == IBV_WR_SEND_WITH_INV && sends[1].wr.invalidate_rkey == 98);
    CHECK_EQ(sends[1].wr.wr.rdma.rkey, 98u);  // where siw's library looks
    CHECK(sends[1].sge.addr == 0x1000 && sends[1].sge.length == 16 && sends[1].sge.lkey == 7);
    ibv_wc wc{};
    wc.wr_id = sends[1].wr.wr_id;
    rig.fake.complete(number, wc, true);
    WorkCompletion out[4];
    REQUIRE(rig.cq->poll(out) == 1);
    CHECK(out[0].wr_id == 2 && out[0].opcode == Opcode::SendWithInvalidate && !out[0].receive);
    CHECK(out[0].qp_context == &rig && out[0].status == Status::Success);
    CHECK_EQ(rig.qp->outstanding_sends(), 0u);
  });
}

TEST(what_a_post_returns_becomes_an_errno) {
  CHECK_EQ(verbs::error_of_post(0), 0);
  CHECK_EQ(verbs::error_of_post(ENOMEM), ENOMEM);
  CHECK_EQ(verbs::error_of_post(-EINVAL), EINVAL);
  errno = ENOTCONN;
  CHECK_EQ(verbs::error_of_post(-1), ENOTCONN);
}

TEST(a_full_send_queue_and_a_refused_chain_leave_what_was_accepted) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  REQUIRE(rig.establish());
  rig.run([&] {
    SendWorkRequest requests[9];
    for (uint64_t i = 0; i < 9; i++) requests[i] = send_of(i, Opcode::Send, nullptr, kSignaled);
    const auto posted = rig.qp->post_send(requests);
    CHECK(!posted && posted.error().code == ENOMEM);
    CHECK_EQ(rig.qp->outstanding_sends(), 8u);
  });
  rig.run([&] { rig.drop(); });
  VerbsRig* const again = &rig;
  again->run([&] { CHECK(again->make_queue_pair()); });
}

TEST(a_receive_with_an_error_is_not_taken_for_a_send) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  REQUIRE(rig.establish());
  const uint32_t number = rig.qp->number();
  rig.run([&] {
    const Sge sge{0x1000, 64, 7};
    const ReceiveWorkRequest receive{77, 1, &sge};
    CHECK(static_cast<bool>(rig.qp->post_receive({&receive, 1})));
    const SendWorkRequest send = send_of(77, Opcode::Send, nullptr, kSignaled);
    CHECK(static_cast<bool>(rig.qp->post_send({&send, 1})));
    ibv_wc wc{};
    wc.status = IBV_WC_RETRY_EXC_ERR;
    wc.wr_id = rig.fake.qp(number).sends[0].wr.wr_id;
    rig.fake.complete(number, wc, true);
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.wr_id = rig.fake.qp(number).receives[0].wr_id;
    rig.fake.complete(number, wc, false);
    WorkCompletion out[4];
    REQUIRE(rig.cq->poll(out) == 2);
    CHECK(!out[0].receive && out[0].wr_id == 77 && out[0].status == Status::RetryExceeded);
    CHECK(out[1].receive && out[1].wr_id == 77 && out[1].status == Status::FlushError);
    CHECK(rig.qp->state() == State::Err);
  });
  CHECK(rig.handler.wait(2) == "disconnected the queue pair failed: transport retries exceeded");
  CHECK(rig.fake.states(number).ends_with("ERR "));
}

TEST(completions_that_come_while_arming_are_kept_and_those_of_a_gone_queue_pair_dropped) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  REQUIRE(rig.establish());
  const uint32_t number = rig.qp->number();
  rig.run([&] {
    ibv_wc wc{};
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = IBV_WC_WITH_INV;
    wc.invalidated_rkey = 5;
    wc.byte_len = 16;
    wc.wr_id = 3;
    rig.fake.complete(number, wc, false);
    CHECK(!rig.cq->arm());  // there is one
    WorkCompletion out[4];
    REQUIRE(rig.cq->poll(out) == 1);
    CHECK(out[0].receive && out[0].flags == kWithInvalidate && out[0].imm_or_rkey == 5);
    CHECK(out[0].byte_length == 16 && out[0].opcode == Opcode::SendWithInvalidate);
    CHECK(rig.cq->arm());
    rig.fake.complete(number, wc, false);
    CHECK(!rig.cq->arm());
    rig.qp.reset();
    CHECK_EQ(rig.cq->poll(out), 0);
  });
}

TEST(a_window_is_bound_under_the_key_that_was_named) {
  VerbsRig rig;
  rig.fake.add_device("rxe0", "10.9.0.1");
  REQUIRE(rig.open());
  REQUIRE(rig.establish());
  rig.run([&] {
    char bytes[64];
    auto region = rig.pd->register_memory(bytes, sizeof bytes, kLocalWrite | kWindowBind);
    auto window = rig.pd->allocate_window();
    REQUIRE(region && window);
    const uint32_t first = (*window)->next_rkey();
    SendWorkRequest bind = send_of(1, Opcode::BindMemoryWindow, nullptr, kSignaled);
    bind.bind = {window->get(), region->get(), 0x2000, 64, first, kRemoteWrite};
    CHECK(static_cast<bool>(rig.qp->post_send({&bind, 1})));
    const ibv_send_wr& wr = rig.fake.qp(rig.qp->number()).sends[0].wr;
    CHECK(wr.opcode == IBV_WR_BIND_MW && wr.bind_mw.rkey == first);
    CHECK(wr.bind_mw.bind_info.addr == 0x2000 && wr.bind_mw.bind_info.length == 64);
    CHECK_EQ(wr.bind_mw.bind_info.mw_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE});
    const uint32_t second = (*window)->next_rkey();
    CHECK(second != first && (second & ~0xFFu) == (first & ~0xFFu));
  });
}

TEST(the_sink_of_a_read_on_iwarp_has_a_key_while_the_read_is_out) {
  VerbsRig rig;
  rig.fake.make_iwarp(rig.fake.add_device("siw0", "10.9.0.1"));
  REQUIRE(rig.open());
  const Capabilities& can = rig.device->capabilities();
  CHECK(can.fabric == Fabric::Iwarp && !can.receiver_not_ready && !can.memory_windows);
  REQUIRE(rig.establish_iwarp());
  rig.run([&] {
    const uint32_t number = rig.qp->number();
    CHECK(rig.fake.states(number) == "INIT ");  // the kernel does the rest
    const Sge sge{0x1000, 4096, 7};
    const SendWorkRequest read = send_of(1, Opcode::RdmaRead, &sge, kSignaled);
    CHECK(static_cast<bool>(rig.qp->post_send({&read, 1})));
    CHECK_EQ(rig.fake.live_regions(), 1u);
    const FakeSend& sent = rig.fake.qp(number).sends[0];
    CHECK(sent.sge.addr == 0x1000 && sent.sge.length == 4096 && sent.sge.lkey != 7);
    const SendWorkRequest immediate = send_of(2, Opcode::SendWithImm, nullptr, kSignaled);
    CHECK(!rig.qp->post_send({&immediate, 1}));
    ibv_wc wc{};
    wc.wr_id = sent.wr.wr_id;
    rig.fake.complete(number, wc, true);
    WorkCompletion out[4];
    REQUIRE(rig.cq->poll(out) == 1);
    CHECK(out[0].opcode == Opcode::RdmaRead && out[0].wr_id == 1);
    CHECK_EQ(rig.fake.live_regions(), 0u);
  });
}

TEST(a_write_on_iwarp_is_signaled_in_silence) {
  for (const bool iwarp : {true, false}) {
    VerbsRig rig;
    auto& added = rig.fake.add_device("dev0", "10.9.0.1");
    if (iwarp) rig.fake.make_iwarp(added);
    REQUIRE(rig.open());
    REQUIRE(iwarp ? rig.establish_iwarp() : rig.establish());
    rig.run([&] {
      const uint32_t number = rig.qp->number();
      const Sge sge{0x1000, 8192, 7};
      const SendWorkRequest requests[] = {send_of(1, Opcode::RdmaWrite, &sge, 0),
                                          send_of(2, Opcode::Send, &sge, kSignaled)};
      CHECK(static_cast<bool>(rig.qp->post_send(requests)));
      const bool signaled = (rig.fake.qp(number).sends[0].wr.send_flags & IBV_SEND_SIGNALED) != 0;
      CHECK_EQ(signaled, iwarp);
      WorkCompletion out[4];
      for (size_t i = iwarp ? 0 : 1; i < 2; i++) {
        ibv_wc wc{};
        wc.wr_id = rig.fake.qp(number).sends[i].wr.wr_id;
        rig.fake.complete(number, wc, true);
      }
      REQUIRE(rig.cq->poll(out) == 1);
      CHECK_EQ(out[0].wr_id, 2u);
      CHECK_EQ(rig.qp->outstanding_sends(), 0u);
    });
  }
}

TEST(a_send_that_overtakes_a_read_on_iwarp_leaves_it_its_key) {
  VerbsRig rig;
  rig.fake.make_iwarp(rig.fake.add_device("siw0", "10.9.0.1"));
  REQUIRE(rig.open());
  REQUIRE(rig.establish_iwarp());
  rig.run([&] {
    const uint32_t number = rig.qp->number();
    const Sge sge{0x1000, 4096, 7};
    const SendWorkRequest requests[] = {send_of(1, Opcode::RdmaRead, &sge, kSignaled),
                                        send_of(2, Opcode::RdmaRead, &sge, 0),
                                        send_of(3, Opcode::Send, &sge, kSignaled)};
    CHECK(static_cast<bool>(rig.qp->post_send(requests)));
    CHECK_EQ(rig.fake.live_regions(), 2u);
    WorkCompletion out[4];
    const auto complete = [&](size_t index) {
      ibv_wc wc{};
      wc.wr_id = rig.fake.qp(number).sends[index].wr.wr_id;
      rig.fake.complete(number, wc, true);
      return rig.cq->poll(out);
    };
    REQUIRE(complete(2) == 1);
    CHECK_EQ(out[0].wr_id, 3u);
    CHECK_EQ(rig.fake.live_regions(), 2u);
    CHECK_EQ(rig.qp->outstanding_sends(), 3u);
    CHECK_EQ(complete(1), 0u);  // nobody asked for it
    CHECK_EQ(rig.fake.live_regions(), 1u);
    REQUIRE(complete(0) == 1);
    CHECK_EQ(out[0].wr_id, 1u);
    CHECK_EQ(rig.fake.live_regions(), 0u);
    CHECK_EQ(rig.qp->outstanding_sends(), 0u);
  });
}

TEST_MAIN
