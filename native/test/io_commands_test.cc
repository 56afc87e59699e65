// Every I/O command of the table, through a whole target over the loopback provider: each check
// before execution with its status and the offending byte, then what the command does.
#include "nvmf/io_commands.h"

#include <algorithm>
#include <numeric>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
using nvmeof::block::Operation;

namespace {

constexpr uint32_t kDepth = 8;

// A bound queue on namespace 1: 1 MiB of 512-byte blocks.
struct Bound {
  TargetRig rig;
  ScriptedBacking backing{1u << 20};
  RawHost host{&rig, 7, kDepth};
  Bound() {
    rig.add_namespace(1, &backing);
    rig.bind(host);
    rig.sink.events.clear();
  }
  ~Bound() { rig.check_idle(); }

  // The answer's status must be `status`, and the IoError event must name the byte.
  void expect(const Sqe& sqe, uint16_t status, uint16_t parameter,
              std::span<const uint8_t> data = {}) {
    rig.sink.events.clear();
    const Answer answer = host.ask(sqe, data);
    CHECK_EQ(answer.status, status);
    CHECK_EQ(rig.sink.count(EventKind::IoError), status ? 1u : 0u);
    if (!status) return;
    const Event* event = rig.sink.last(EventKind::IoError);
    REQUIRE(event);
    CHECK_EQ(event->id, 7u);
    CHECK_EQ(event->code & 0xFFFF, status);
    CHECK_EQ(event->code >> 16, parameter);
    CHECK(std::equal(event->first.begin(), event->first.end(), sqe.bytes.begin()));
  }
  Sqe read(uint64_t slba, uint32_t blocks, uint32_t nsid = 1) {
    return Sqe(io::kRead, 3, nsid)
        .range(slba, blocks)
        .keyed(host.address(), blocks * 512, host.key());
  }
  Sqe write(uint64_t slba, uint32_t blocks, uint32_t nsid = 1) {
    return Sqe(io::kWrite, 4, nsid)
        .range(slba, blocks)
        .keyed(host.address(), blocks * 512, host.key());
  }
};

void fill(std::span<uint8_t> bytes, unsigned seed) {
  for (size_t i = 0; i < bytes.size(); i++)
    bytes[i] = static_cast<uint8_t>(i * 31 + i / 251 + seed);
}

}  // namespace

TEST(psdt_and_fused_bits_are_refused) {
  Bound b;
  for (const unsigned flags : {0x00u, 0x80u, 0xC0u, 0x41u, 0x42u, 0x43u})
    b.expect(b.read(0, 1).byte(1, static_cast<uint8_t>(flags)), status::kInvalidField, 1);
  CHECK_EQ(b.backing.seen.size(), 0u);
}

TEST(opcodes_outside_the_table_are_refused) {
  Bound b;
  for (unsigned opcode = 0; opcode < 256; opcode++) {
    if (io_row(static_cast<uint8_t>(opcode)) || opcode == kOpcodeFabrics) continue;
    b.expect(b.read(0, 1).byte(0, static_cast<uint8_t>(opcode)), status::kInvalidOpcode, 0);
  }
}

TEST(namespace_ids_must_name_a_namespace) {
  Bound b;
  for (const uint32_t nsid : {0u, 2u, 1023u, 1024u, 70000u, 0xFFFFFFFEu, 0xFFFFFFFFu}) {
    b.expect(b.read(0, 1, nsid), status::kInvalidNamespace, 4);
    b.expect(b.write(0, 1, nsid), status::kInvalidNamespace, 4);
  }
  b.expect(Sqe(io::kFlush, 1, 2), status::kInvalidNamespace, 4);
}

TEST(undefined_sgl_types_are_refused) {
  Bound b;
  for (unsigned type = 0; type < 256; type++) {
    if (type == 0x40 || type == 0x4F) continue;
    b.expect(b.read(0, 1).byte(39, static_cast<uint8_t>(type)), status::kSglTypeInvalid, 39);
    if (type != 0x01)
      b.expect(b.write(0, 1).byte(39, static_cast<uint8_t>(type)), status::kSglTypeInvalid, 39);
  }
}

TEST(sgl_lengths_must_match_the_command) {
  Bound b;
  for (const uint32_t length : {0u, 1u, 511u, 513u, 1024u, 0xFFFFFFu}) {
    b.expect(b.read(0, 1).keyed(b.host.address(), length, b.host.key()), status::kSglLengthInvalid,
             32);
    b.expect(b.write(0, 1).keyed(b.host.address(), length, b.host.key()), status::kSglLengthInvalid,
             32);
  }
  CHECK_EQ(b.backing.seen.size(), 0u);
}

TEST(in_capsule_data_must_lie_in_the_capsule) {
  Bound b;
  std::vector<uint8_t> data(1024);
  fill(data, 1);
  // NLB 2 with data of one block behind the SQE (what MSDBD > 1 hosts once sent).
  b.expect(b.write(0, 2).in_capsule(0, 1024), status::kSglLengthInvalid, 32,
           std::span(data).first(512));
  b.expect(b.write(0, 1).in_capsule(1024, 512), status::kSglLengthInvalid, 32, data);
  b.expect(b.write(0, 1).in_capsule(1025, 512), status::kSglOffsetInvalid, 24, data);
  b.expect(b.write(0, 1).in_capsule(~0ull - 511, 512), status::kSglOffsetInvalid, 24, data);
  b.expect(b.write(0, 2).in_capsule(0, 512), status::kSglLengthInvalid, 32, data);
  b.expect(b.write(0, 1).in_capsule(512, 512), 0, 0, data);
  CHECK(std::equal(data.begin() + 512, data.end(), b.backing.bytes.begin()));
}

TEST(ranges_beyond_the_namespace_are_refused) {
  Bound b;
  const uint64_t blocks = (1u << 20) / 512;
  b.expect(b.read(blocks, 1), status::kLbaOutOfRange, 40);
  b.expect(b.read(blocks - 1, 2), status::kLbaOutOfRange, 40);
  b.expect(b.read(~0ull, 1), status::kLbaOutOfRange, 40);
  b.expect(b.read(~0ull, 2), status::kLbaOutOfRange, 40);
  b.expect(b.read(~0ull >> 9, 1), status::kLbaOutOfRange, 40);
  b.expect(b.write(1ull << 55, 1), status::kLbaOutOfRange, 40);
  b.expect(Sqe(io::kWriteZeroes, 1, 1).range(blocks - 1, 65536), status::kLbaOutOfRange, 40);
  b.expect(Sqe(io::kVerify, 1, 1).range(blocks, 1), status::kLbaOutOfRange, 40);
  b.expect(b.read(blocks - 1, 1), 0, 0);
}

TEST(transfers_above_mdts_are_refused) {
  Bound b;
  b.expect(b.read(0, 512), 0, 0);  // 256 KiB
  b.expect(b.read(0, 513), status::kInvalidField, 48);
  b.rig.add_namespace(1, &b.backing, false, 8192);
  b.expect(b.read(0, 16), 0, 0);
  b.expect(b.read(0, 17), status::kInvalidField, 48);
  b.expect(b.write(0, 17), status::kInvalidField, 48);
}

TEST(write_protected_namespaces_take_no_writes) {
  Bound b;
  b.rig.add_namespace(1, &b.backing, true);
  b.expect(b.write(0, 1), status::kNamespaceWriteProtected, 4);
  b.expect(Sqe(io::kWriteZeroes, 1, 1).range(0, 1), status::kNamespaceWriteProtected, 4);
  std::vector<uint8_t> range(16);
  b.expect(Sqe(io::kDatasetManagement, 1, 1).in_capsule(0, 16).dword(44, 4),
           status::kNamespaceWriteProtected, 4, range);
  b.expect(b.read(0, 1), 0, 0);
  b.expect(Sqe(io::kFlush, 1, 1), 0, 0);
  b.rig.add_namespace(1, &b.backing, false);
  b.backing.is_read_only = true;
  b.expect(b.write(0, 1), status::kNamespaceWriteProtected, 4);
}

TEST(data_goes_out_and_comes_back) {
  Bound b;
  // Keyed writes of several sizes at several places, each read back elsewhere in host memory.
  uint64_t slba = 3;
  for (const uint32_t blocks : {1u, 2u, 7u, 8u, 64u, 255u, 256u, 512u}) {
    const uint32_t length = blocks * 512;
    fill({b.host.memory.data(), length}, blocks);
    b.expect(
        Sqe(io::kWrite, 1, 1).range(slba, blocks).keyed(b.host.address(), length, b.host.key()), 0,
        0);
    CHECK(std::equal(b.host.memory.begin(), b.host.memory.begin() + length,
                     b.backing.bytes.begin() + static_cast<std::ptrdiff_t>(slba * 512)));
    b.expect(Sqe(io::kRead, 2, 1)
                 .range(slba, blocks)
                 .keyed(b.host.address(1u << 20), length, b.host.key()),
             0, 0);
    CHECK(std::equal(b.host.memory.begin(), b.host.memory.begin() + length,
                     b.host.memory.begin() + (1u << 20)));
    CHECK_EQ(b.host.memory[(1u << 20) + length], 0);  // not a byte more
    std::fill(b.host.memory.begin() + (1u << 20), b.host.memory.end(), uint8_t{0});
    slba += blocks;
  }
  CHECK_EQ(b.rig.counter("target.bytes.read"), b.rig.counter("target.bytes.written"));
  CHECK_EQ(b.rig.counter("target.commands.read"), 8u);
}

TEST(in_capsule_writes_go_straight_to_the_backing) {
  Bound b;
  std::vector<uint8_t> data(4096);
  fill(data, 9);
  b.backing.hold = true;
  b.host.send(b.write(8, 8).in_capsule(0, 4096), data);
  b.rig.settle();
  CHECK_EQ(b.rig.counter("live.targetReceives"), 1u);  // the capsule holds the data
  CHECK_EQ(b.rig.counter("live.targetBuffers"), 0u);
  REQUIRE(b.backing.held() == 1);
  CHECK_EQ(reinterpret_cast<uint64_t>(b.backing.waiting.front()->iov->iov_base) % 512, 0u);
  b.backing.hold = false;
  b.backing.release_all();
  b.rig.settle();
  CHECK_EQ(b.host.answers.back().status, 0);
  CHECK(std::equal(data.begin(), data.end(), b.backing.bytes.begin() + 4096));
}

TEST(force_unit_access_reaches_the_backing) {
  Bound b;
  b.expect(b.write(0, 1).byte(51, 0x40), 0, 0);
  CHECK(b.backing.seen.back().fua);
  b.expect(b.write(0, 1), 0, 0);
  CHECK(!b.backing.seen.back().fua);
}

TEST(write_zeroes_covers_up_to_65536_blocks) {
  TargetRig rig;
  ScriptedBacking backing(65536ull * 512 + 512);
  RawHost host(&rig, 7, kDepth);
  rig.add_namespace(1, &backing);
  rig.bind(host);
  std::fill(backing.bytes.begin(), backing.bytes.end(), uint8_t{0x5A});
  Answer answer = host.ask(Sqe(io::kWriteZeroes, 1, 1).range(1, 65536));
  CHECK_EQ(answer.status, 0);
  CHECK_EQ(backing.seen.back().length, 65536u * 512);
  CHECK(!backing.seen.back().may_deallocate);
  CHECK_EQ(std::accumulate(backing.bytes.begin(), backing.bytes.end(), 0ull), 512u * 0x5A);
  // DEAC is bit 25 of CDW12.
  answer = host.ask(Sqe(io::kWriteZeroes, 1, 1).range(0, 1).byte(51, 0x02));
  CHECK_EQ(answer.status, 0);
  CHECK(backing.seen.back().may_deallocate);
  rig.check_idle();
}

TEST(flush_reaches_one_namespace_or_all) {
  Bound b;
  ScriptedBacking second(65536), far(65536);
  b.rig.add_namespace(2, &second);
  b.rig.add_namespace(5000, &far);
  b.expect(Sqe(io::kFlush, 1, 1), 0, 0);
  CHECK_EQ(b.backing.seen.size(), 1u);
  CHECK(b.backing.seen.back().operation == Operation::Flush);
  CHECK_EQ(second.seen.size(), 0u);
  b.expect(Sqe(io::kFlush, 1, kNsidAll), 0, 0);
  CHECK_EQ(b.backing.seen.size(), 2u);
  CHECK_EQ(second.seen.size(), 1u);
  CHECK_EQ(far.seen.size(), 1u);
  second.fail_next(Operation::Flush, EIO);
  b.expect(Sqe(io::kFlush, 1, kNsidAll), status::kWriteFault, kNoParameter);
  // Garbage in a descriptor that no one reads is no error.
  b.expect(Sqe(io::kFlush, 1, 1).byte(39, 0xFF), 0, 0);
}

TEST(dataset_management_deallocates_every_range) {
  Bound b;
  std::fill(b.backing.bytes.begin(), b.backing.bytes.end(), uint8_t{1});
  // 256 ranges of one block, every second block, fetched by READ; the buffer is 4096 bytes.
  for (uint32_t i = 0; i < 256; i++) {
    uint8_t* at = b.host.memory.data() + i * 16;
    std::memset(at, 0, 16);
    at[4] = i == 255 ? 0 : 1;  // the last one is empty
    store64(at + 8, i * 2);
  }
  const auto dsm = [&](uint32_t ranges, uint32_t length) {
    return Sqe(io::kDatasetManagement, 1, 1)
        .keyed(b.host.address(), length, b.host.key())
        .dword(40, ranges - 1)
        .dword(44, 4);
  };
  b.expect(dsm(256, 4096), 0, 0);
  CHECK_EQ(b.backing.seen.size(), 255u);
  for (size_t i = 0; i < 512; i++) CHECK_EQ(b.backing.bytes[i * 512], i < 510 ? i % 2 : 1u);
  // A buffer longer than the ranges is fine, a shorter one is not.
  b.backing.seen.clear();
  b.expect(dsm(1, 4096), 0, 0);
  CHECK_EQ(b.backing.seen.size(), 1u);
  b.expect(dsm(10, 159), status::kSglLengthInvalid, 32);
  b.expect(dsm(10, 160), 0, 0);
  b.expect(dsm(1, 0), status::kSglLengthInvalid, 32);
}

TEST(dataset_management_checks_all_ranges_before_it_touches_one) {
  Bound b;
  std::vector<uint8_t> ranges(32);
  ranges[4] = 1;
  store64(&ranges[24], (1u << 20) / 512);  // second range: beyond the end
  ranges[20] = 1;
  const auto dsm = [&](uint8_t attributes) {
    return Sqe(io::kDatasetManagement, 1, 1).in_capsule(0, 32).dword(40, 1).dword(44, attributes);
  };
  b.expect(dsm(4), status::kLbaOutOfRange, kNoParameter, ranges);
  store64(&ranges[24], ~0ull);
  b.expect(dsm(4), status::kLbaOutOfRange, kNoParameter, ranges);
  CHECK_EQ(b.backing.seen.size(), 0u);
  // Hints other than deallocate, a backing that cannot, or one that says so: success.
  store64(&ranges[24], 4);
  b.expect(dsm(3), 0, 0, ranges);
  b.backing.deallocates = false;
  b.expect(dsm(4), 0, 0, ranges);
  CHECK_EQ(b.backing.seen.size(), 0u);
  b.backing.deallocates = true;
  b.backing.fail_next(Operation::Deallocate, EOPNOTSUPP);
  b.expect(dsm(4), 0, 0, ranges);
  CHECK_EQ(b.backing.seen.size(), 2u);
}

TEST(dataset_management_ranges_above_4_gib_do_not_wrap) {
  // Size without memory: only what was asked of the backing matters.
  class Huge : public ScriptedBacking {
   public:
    Huge() : ScriptedBacking(512) {}
    uint64_t size() const override { return 8ull << 30; }
  } huge;
  TargetRig rig;
  RawHost host(&rig, 7, kDepth);
  rig.add_namespace(1, &huge);
  rig.bind(host);
  huge.fail_next(Operation::Deallocate, EOPNOTSUPP);  // hint: answered with success
  std::vector<uint8_t> range(16);
  range[6] = 0x90;  // NLB 0x00900000
  const Answer answer =
      host.ask(Sqe(io::kDatasetManagement, 1, 1).in_capsule(0, 16).dword(44, 4), range);
  CHECK_EQ(answer.status, 0);
  REQUIRE(huge.seen.size() == 1);
  CHECK_EQ(huge.seen[0].length, 0x00900000ull * 512);
  rig.check_idle();
}

TEST(compare_tells_equal_from_different) {
  Bound b;
  fill(b.backing.bytes, 3);
  const auto compare = [&](uint32_t blocks) {
    return Sqe(io::kCompare, 1, 1)
        .range(4, blocks)
        .keyed(b.host.address(), blocks * 512, b.host.key());
  };
  std::copy_n(b.backing.bytes.begin() + 2048, 256 * 1024, b.host.memory.begin());
  b.expect(compare(512), 0, 0);
  b.host.memory[512 * 512 - 1] ^= 1;
  b.expect(compare(512), status::kCompareFailure, kNoParameter);
  std::vector<uint8_t> data(b.backing.bytes.begin() + 2048, b.backing.bytes.begin() + 2560);
  b.expect(compare(1).in_capsule(0, 512), 0, 0, data);
  data[0] ^= 0x80;
  b.expect(compare(1).in_capsule(0, 512), status::kCompareFailure, kNoParameter, data);
  b.backing.fail_next(Operation::Read, EIO);
  b.expect(compare(1), status::kUnrecoveredReadError, kNoParameter);
}

TEST(verify_reads_the_whole_range_in_pieces) {
  Bound b;
  b.expect(Sqe(io::kVerify, 1, 1).range(0, 2048), 0, 0);
  CHECK_EQ(b.backing.seen.size(), 8u);
  uint64_t at = 0;
  for (const auto& seen : b.backing.seen) {
    CHECK_EQ(seen.offset, at);
    at += seen.length;
  }
  CHECK_EQ(at, 1u << 20);
  b.backing.fail_next(Operation::Read, EIO);
  b.expect(Sqe(io::kVerify, 1, 1).range(0, 300), status::kUnrecoveredReadError, kNoParameter);
}

TEST(blocks_of_4096_bytes_scale_everything) {
  TargetRig rig;
  ScriptedBacking backing(1u << 20, 4096);
  RawHost host(&rig, 7, kDepth);
  rig.add_namespace(1, &backing);
  rig.bind(host);
  const auto read = [&](uint64_t slba, uint32_t length) {
    return host.ask(Sqe(io::kRead, 1, 1).range(slba, 1).keyed(host.address(), length, host.key()));
  };
  CHECK_EQ(read(255, 4096).status, 0);
  CHECK_EQ(backing.seen.back().offset, 255u * 4096);
  CHECK_EQ(read(255, 512).status, status::kSglLengthInvalid);
  CHECK_EQ(read(256, 4096).status, status::kLbaOutOfRange);
  rig.check_idle();
}

TEST(backing_errors_become_statuses_and_later_commands_work) {
  Bound b;
  b.backing.fail_next(Operation::Write, ENOSPC);
  b.expect(b.write(0, 1), status::kCapacityExceeded, kNoParameter);
  b.expect(b.write(0, 1), 0, 0);
  b.backing.fail_next(Operation::Write, EIO);
  b.expect(b.write(0, 1), status::kWriteFault, kNoParameter);
  b.backing.fail_next(Operation::Read, EIO);
  b.expect(b.read(0, 1), status::kUnrecoveredReadError, kNoParameter);
  b.backing.fail_next(Operation::Write, EROFS);
  b.expect(b.write(0, 1), status::kNamespaceWriteProtected, kNoParameter);
  b.expect(b.read(0, 1), 0, 0);
  CHECK_EQ(b.rig.counter("target.errors"), 4u);
}

TEST(a_failed_read_moves_no_data) {
  Bound b;
  b.backing.fail_next(Operation::Read, EIO);
  b.rig.fabric.tracing = true;
  b.expect(b.read(0, 8), status::kUnrecoveredReadError, kNoParameter);
  CHECK(b.rig.fabric.trace == "send send ");
}

TEST_MAIN
