// Leases: what is put off, what stays over, and that no backing begins to change data for a request
// whose lease is over, however late that is found out.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "block/delay_backing.h"
#include "block/thread_channel.h"
#include "block/uring_channel.h"
#include "reactor/lease.h"
#include "test.h"

using namespace nvmeof::block;
using nvmeof::reactor::kNever;
using nvmeof::reactor::Lease;
using nvmeof::reactor::TimeNs;

namespace {

constexpr uint64_t kBytes = 1 << 20;

void end(Lease& lease) {
  CHECK(lease.set(1, Lease::clock() - 1000));
}

struct Ended {
  int error = -1;
  int calls = 0;
};

struct Write {
  std::vector<uint8_t> data;
  iovec iov;
  Request request{};
  Ended ended;
  Write(const Lease* lease, uint64_t offset, size_t length = 512) : data(length, 'X') {
    iov = {data.data(), length};
    request.operation = Operation::Write;
    request.offset = offset;
    request.length = length;
    request.iov = &iov;
    request.iov_count = 1;
    request.lease = lease;
    request.context = &ended;
    request.done = [](Request* r, int error) {
      auto* const of = static_cast<Ended*>(r->context);
      of->error = error;
      of->calls++;
    };
  }
  Write(const Write&) = delete;
  Write& as(Operation operation) {
    request.operation = operation;
    if (operation != Operation::Read) request.iov_count = 0;
    return *this;
  }
};

void finish(Channel& channel, const Write& write) {
  while (write.ended.calls == 0) channel.poll(0);
  CHECK_EQ(write.ended.calls, 1);
}

int run(Channel& channel, Write& write) {
  channel.submit(&write.request);
  finish(channel, write);
  return write.ended.error;
}

nvmeof::Result<std::unique_ptr<Backing>> open_memory() {
  Options options;
  options.kind = Kind::Memory;
  options.size = kBytes;
  return open_backing(options);
}

struct TemporaryFile {
  FileHandle handle;
  TemporaryFile() {
    char name[] = "/tmp/nvmeof-lease-XXXXXX";
    handle.fd = mkstemp(name);
    CHECK(handle.fd >= 0 && ftruncate(handle.fd, kBytes) == 0);
    unlink(name);
    handle.block_device = handle.direct = false;
    handle.memory_alignment = 1;
  }
  ~TemporaryFile() { close(handle.fd); }
  bool zero() const {
    std::vector<uint8_t> bytes(kBytes);
    CHECK_EQ(pread(handle.fd, bytes.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    for (const uint8_t byte : bytes)
      if (byte != 0) return false;
    return true;
  }
};

// What holds for every channel of a backing that is zero at first.
template <typename IsZero>
void exercise(Channel& channel, IsZero is_zero) {
  Lease lease;
  end(lease);
  for (const auto operation : {Operation::Write, Operation::WriteZeroes, Operation::Deallocate}) {
    Write late(&lease, 4096);
    CHECK_EQ(run(channel, late.as(operation)), kLeaseOver);
  }
  CHECK(is_zero());
  // It changes nothing: it may go on.
  Write read(&lease, 4096), flush(&lease, 0);
  CHECK_EQ(run(channel, read.as(Operation::Read)), 0);
  CHECK_EQ(run(channel, flush.as(Operation::Flush)), 0);
  Lease held;
  CHECK(held.set(kNever, Lease::clock()));
  Write without(nullptr, 0), with(&held, 512);
  CHECK_EQ(run(channel, without), 0);
  CHECK_EQ(run(channel, with), 0);
  CHECK(!is_zero());
  CHECK_EQ(channel.in_flight(), 0u);
}

}  // namespace

TEST(a_lease_is_put_off_and_stays_over) {
  Lease lease;
  CHECK(!lease.over(kNever - 1) && lease.left(5) == kNever);
  CHECK(lease.renew(5) && lease.left(5) == kNever);  // without a term it has no end
  CHECK(lease.set(100, 1000));
  CHECK_EQ(lease.left(1000), 100u);
  CHECK(!lease.over(1099) && lease.over(1100));
  CHECK(lease.renew(1099));
  CHECK(!lease.over(1198) && lease.over(1199));
  CHECK(lease.set(10, 1150) && lease.over(1160));
  CHECK(lease.set(kNever, 1155) && !lease.over(1u << 30));
  CHECK(lease.set(10, 2000));
  CHECK(!lease.renew(2010) && !lease.set(1000, 2010) && !lease.set(kNever, 2011));
  CHECK(lease.over(2010) && lease.left(2010) == 0);
}

TEST(its_clock_goes_on) {
  const TimeNs first = Lease::clock();
  timespec wait{0, 2'000'000};
  CHECK_EQ(nanosleep(&wait, nullptr), 0);
  CHECK(Lease::clock() - first >= 2'000'000);
}

TEST(memory_is_not_changed_for_a_lease_that_is_over) {
  auto backing = open_memory();
  REQUIRE(backing);
  auto channel = (*backing)->open_channel(nullptr, nullptr, 0);
  REQUIRE(channel);
  const auto* const bytes = static_cast<const uint8_t*>((*backing)->resident().base);
  exercise(**channel, [bytes] {
    for (uint64_t i = 0; i < kBytes; i++)
      if (bytes[i] != 0) return false;
    return true;
  });
}

TEST(a_file_is_not_changed_through_threads) {
  TemporaryFile file;
  auto channel = ThreadChannel::open(nullptr, &file.handle);
  REQUIRE(channel);
  exercise(**channel, [&file] { return file.zero(); });
}

TEST(a_file_is_not_changed_through_io_uring) {
  TemporaryFile file;
  auto channel = UringChannel::open(nullptr, &file.handle, nullptr, 0);
  REQUIRE(channel);
  exercise(**channel, [&file] { return file.zero(); });
}

// Submitted in time; but what counts is when the kernel takes them. More than it takes at a time.
TEST(what_waits_for_the_kernel_is_held_back_when_the_lease_ends) {
  TemporaryFile file;
  auto channel = UringChannel::open(nullptr, &file.handle, nullptr, 0);
  REQUIRE(channel);
  Lease lease, other;
  std::vector<std::unique_ptr<Write>> writes;
  for (uint64_t i = 0; i < 600; i++) {
    writes.push_back(std::make_unique<Write>(i % 100 == 7 ? &other : &lease, i * 1024));
    writes.back()->request.fua = true;
    (*channel)->submit(&writes.back()->request);
  }
  end(lease);
  for (size_t i = 0; i < writes.size(); i++) {
    finish(**channel, *writes[i]);
    CHECK_EQ(writes[i]->ended.error, i % 100 == 7 ? 0 : kLeaseOver);
    uint8_t byte = 1;
    CHECK_EQ(pread(file.handle.fd, &byte, 1, static_cast<off_t>(i * 1024)), 1);
    CHECK_EQ(byte, i % 100 == 7 ? 'X' : 0);
  }
}

// Zeros that are written piece by piece, one in each poll at most.
TEST(a_request_of_several_steps_ends_between_them) {
  TemporaryFile file;
  file.handle.no_zero_range = file.handle.no_punch_hole = true;
  const uint8_t one = 1;
  CHECK_EQ(ftruncate(file.handle.fd, 4 * kZeroBytes), 0);
  for (unsigned piece = 0; piece < 4; piece++)
    CHECK_EQ(pwrite(file.handle.fd, &one, 1, static_cast<off_t>(piece * kZeroBytes)), 1);
  const auto at = [&file](uint64_t offset) {
    uint8_t byte = 2;
    CHECK_EQ(pread(file.handle.fd, &byte, 1, static_cast<off_t>(offset)), 1);
    return byte;
  };
  auto channel = UringChannel::open(nullptr, &file.handle, nullptr, 0);
  REQUIRE(channel);
  Lease lease;
  Write zeroes(&lease, 0);
  zeroes.as(Operation::WriteZeroes).request.length = 4 * kZeroBytes;
  (*channel)->submit(&zeroes.request);
  while (at(0) != 0) (*channel)->poll(0);
  end(lease);
  finish(**channel, zeroes);
  CHECK_EQ(zeroes.ended.error, kLeaseOver);
  CHECK_EQ(at(3 * kZeroBytes), 1);
}

TEST(a_write_that_a_slow_backing_held_is_not_begun_after_the_end) {
  auto memory = open_memory();
  REQUIRE(memory);
  const auto* const bytes = static_cast<const uint8_t*>((*memory)->resident().base);
  const auto backing = delay_writes(std::move(*memory), 1);
  auto channel = backing->open_channel(nullptr, nullptr, 0);
  REQUIRE(channel);
  Lease lease;
  Write write(&lease, 0);
  (*channel)->submit(&write.request);
  CHECK_EQ(write.ended.calls, 0);
  end(lease);
  finish(**channel, write);
  CHECK_EQ(write.ended.error, kLeaseOver);
  CHECK_EQ(bytes[0], 0);
}

TEST_MAIN
