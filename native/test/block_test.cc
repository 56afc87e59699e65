// Backings: every kind, both ways of doing file I/O, and each way to get it wrong.
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "block/backing.h"
#include "block/thread_channel.h"
#include "block/uring_channel.h"
#include "support/run_on.h"
#include "test.h"

namespace nvmeof::block {
namespace {

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/nvmeof-block-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() {
    const std::string command = "rm -rf " + path;
    if (system(command.c_str()) != 0) std::perror("rm");
  }
  std::string file(const char* name, uint64_t size) const {
    const std::string full = path + "/" + name;
    const int fd = ::open(full.c_str(), O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) std::perror(full.c_str());
    close(fd);
    return full;
  }
};

struct Outcome {
  int error = -1;
  int calls = 0;
};

void record(Request* request, int error) {
  Outcome* outcome = static_cast<Outcome*>(request->context);
  outcome->error = error;
  outcome->calls++;
}

// One request to its end; -2 when it takes longer than 10 s.
int run(Channel& channel, Request& request) {
  Outcome outcome;
  request.done = record;
  request.context = &outcome;
  channel.submit(&request);
  const reactor::TimeNs limit = 10'000'000'000ull;
  timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (outcome.calls == 0) {
    channel.poll(0);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (static_cast<uint64_t>(now.tv_sec - start.tv_sec) * 1'000'000'000ull > limit) return -2;
  }
  CHECK_EQ(outcome.calls, 1);
  return outcome.error;
}

Request transfer(Operation operation, uint64_t offset, const std::vector<iovec>& iov) {
  Request request{};
  request.operation = operation;
  request.offset = offset;
  request.iov = iov.data();
  request.iov_count = static_cast<uint32_t>(iov.size());
  for (const iovec& v : iov) request.length += v.iov_len;
  return request;
}

int range(Channel& channel, Operation operation, uint64_t offset, uint64_t length,
          bool deallocate = false, bool fua = false) {
  Request request{};
  request.operation = operation;
  request.offset = offset;
  request.length = length;
  request.may_deallocate = deallocate;
  request.fua = fua;
  return run(channel, request);
}

std::vector<uint8_t> pattern(size_t length, uint8_t seed) {
  std::vector<uint8_t> bytes(length);
  for (size_t i = 0; i < length; i++) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256 + seed);
  return bytes;
}

// Writes in three pieces, reads back in two others, zeroes and deallocates the middle.
void exercise(Channel& channel, bool flushes) {
  std::vector<uint8_t> out = pattern(65536, 3), in(65536);
  const std::vector<iovec> three = {
      {out.data(), 4096}, {out.data() + 4096, 20480}, {out.data() + 24576, 40960}};
  Request write = transfer(Operation::Write, 8192, three);
  CHECK_EQ(run(channel, write), 0);
  const std::vector<iovec> two = {{in.data(), 512}, {in.data() + 512, 65024}};
  Request read = transfer(Operation::Read, 8192, two);
  CHECK_EQ(run(channel, read), 0);
  CHECK(in == out);
  if (flushes) CHECK_EQ(range(channel, Operation::Flush, 0, 0), 0);
  const std::vector<iovec> one = {{out.data(), 4096}};
  Request fua = transfer(Operation::Write, 0, one);
  fua.fua = true;
  CHECK_EQ(run(channel, fua), 0);

  CHECK_EQ(range(channel, Operation::WriteZeroes, 8192 + 4096, 8192, false, true), 0);
  CHECK_EQ(range(channel, Operation::WriteZeroes, 8192 + 16384, 512, true), 0);
  CHECK_EQ(range(channel, Operation::Deallocate, 8192 + 32768, 4096), 0);
  std::memset(out.data() + 4096, 0, 8192);
  std::memset(out.data() + 16384, 0, 512);
  std::memset(out.data() + 32768, 0, 4096);
  Request again = transfer(Operation::Read, 8192, two);
  CHECK_EQ(run(channel, again), 0);
  CHECK(in == out);
}

Options file_options(const std::string& path) {
  Options options;
  options.kind = Kind::File;
  options.path = path;
  return options;
}

std::string refusal(const Options& options, int code) {
  auto opened = open_backing(options);
  if (opened) return "(opened)";
  CHECK_EQ(opened.error().code, code);
  return opened.error().message;
}

void fill_the_disk(const Folder& folder) {
  auto backing = open_backing(file_options(folder.file("data", 4 << 20)));
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  std::vector<uint8_t> data(2 << 20, 1);
  const std::vector<iovec> iov = {{data.data(), data.size()}}, little = {{data.data(), 4096}};
  Request write = transfer(Operation::Write, 0, iov);
  CHECK_EQ(run(*channel.value(), write), ENOSPC);
  CHECK_EQ(range(*channel.value(), Operation::Deallocate, 0, 2 << 20), 0);
  Request again = transfer(Operation::Write, 8192, little);
  CHECK_EQ(run(*channel.value(), again), 0);
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(memory_keeps_what_was_written) {
  Options options;
  options.kind = Kind::Memory;
  options.size = 1 << 20;
  auto backing = open_backing(options);
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  REQUIRE(channel);
  CHECK(channel.value()->synchronous());
  exercise(*channel.value(), true);
  uint8_t byte[512];
  const std::vector<iovec> beyond = {{byte, 512}};
  Request read = transfer(Operation::Read, 1 << 20, beyond);
  CHECK_EQ(run(*channel.value(), read), ERANGE);
  Request wrapping = transfer(Operation::Read, ~0ull - 255, beyond);
  CHECK_EQ(run(*channel.value(), wrapping), ERANGE);
}

TEST(memory_is_resident_and_files_are_not) {
  Options options;
  options.kind = Kind::Memory;
  options.size = 1 << 20;
  const auto backing = open_backing(options);
  REQUIRE(backing);
  const auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  std::vector<uint8_t> out = pattern(4096, 3);
  const std::vector<iovec> iov = {{out.data(), out.size()}};
  Request write = transfer(Operation::Write, 8192, iov);
  CHECK_EQ(run(*channel.value(), write), 0);
  const FixedBuffer memory = backing.value()->resident();
  REQUIRE(memory.base != nullptr && memory.length >= 1u << 20);
  CHECK(std::memcmp(static_cast<uint8_t*>(memory.base) + 8192, out.data(), out.size()) == 0);
  CHECK(backing.value()->resize(2 << 20));
  CHECK(backing.value()->resident().base == memory.base);
  options.kind = Kind::Null;
  CHECK(open_backing(options).value()->resident().base == nullptr);
}

// Sanitizers reserve far more address space than the limit leaves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Room to grow is a wish: where address space is short, the namespace opens without.
TEST(memory_opens_where_address_space_is_scarce) {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  Options options;
  options.kind = Kind::Memory;
  options.size = 64 << 20;
  const rlimit scarce{2ull << 30, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &scarce) == 0);
  const auto backing = open_backing(options);
  const bool grows = backing && backing.value()->resize(128 << 20);
  const bool grows_far = backing && backing.value()->resize(8ull << 30);
  setrlimit(RLIMIT_AS, &before);
  REQUIRE(backing);
  CHECK(grows && !grows_far);
}
#endif

TEST(memory_cut_and_grown_again_is_zero) {
  Options options;
  options.kind = Kind::Memory;
  options.size = 8 << 20;
  auto backing = open_backing(options);
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  std::vector<uint8_t> out = pattern(4096, 1), in(4096);
  const std::vector<iovec> iov = {{out.data(), out.size()}}, back = {{in.data(), in.size()}};
  Request write = transfer(Operation::Write, 6 << 20, iov);
  CHECK_EQ(run(*channel.value(), write), 0);
  const uint64_t shrinks = backing.value()->shrinks();
  CHECK(backing.value()->resize(4 << 20));
  CHECK_EQ(backing.value()->size(), 4u << 20);
  CHECK_EQ(backing.value()->shrinks(), shrinks + 1);
  // What was on its way to what is cut off, and comes after that.
  const FixedBuffer memory = backing.value()->resident();
  std::memset(static_cast<uint8_t*>(memory.base) + (6 << 20), 0xEE, 4096);
  CHECK(backing.value()->resize(16 << 20));
  CHECK_EQ(backing.value()->shrinks(), shrinks + 1);
  Request read = transfer(Operation::Read, 6 << 20, back);
  CHECK_EQ(run(*channel.value(), read), 0);
  CHECK(in == std::vector<uint8_t>(4096));
  CHECK(!backing.value()->resize(1000));
  CHECK(!backing.value()->resize(1ull << 50));
}

TEST(memory_blocks_are_atomic_between_reactors) {
  Options options;
  options.kind = Kind::Memory;
  options.size = 1 << 16;
  options.block_size = 4096;
  auto backing = open_backing(options);
  REQUIRE(backing);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  const auto writer = [&](uint8_t value) {
    auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
    std::vector<uint8_t> block(4096, value);
    const std::vector<iovec> iov = {{block.data(), block.size()}};
    while (!stop) {
      Request write = transfer(Operation::Write, 8192, iov);
      run(*channel.value(), write);
    }
  };
  std::thread a(writer, uint8_t{1}), b(writer, uint8_t{2});
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  std::vector<uint8_t> block(4096);
  const std::vector<iovec> iov = {{block.data(), block.size()}};
  for (int i = 0; i < 5000; i++) {
    Request read = transfer(Operation::Read, 8192, iov);
    run(*channel.value(), read);
    if (std::memcmp(block.data(), block.data() + 1, 4095) != 0) torn++;
  }
  stop = true;
  a.join();
  b.join();
  CHECK_EQ(torn.load(), 0);
}

TEST(null_reads_zeros) {
  Options options;
  options.kind = Kind::Null;
  options.size = 1 << 20;
  auto backing = open_backing(options);
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  std::vector<uint8_t> in = pattern(4096, 9);
  const std::vector<iovec> iov = {{in.data(), in.size()}};
  Request read = transfer(Operation::Read, 4096, iov);
  CHECK_EQ(run(*channel.value(), read), 0);
  CHECK(in == std::vector<uint8_t>(4096));
}

TEST(file_through_io_uring_in_every_cache_mode) {
  if (!UringChannel::allowed()) {
    std::fprintf(stderr, "io_uring is not allowed here: threads only\n");
    return;
  }
  const Folder folder;
  for (const Cache cache : {Cache::WriteBack, Cache::WriteThrough, Cache::Direct}) {
    Options options = file_options(folder.file("data", 1 << 20));
    options.cache = cache;
    options.block_size = 4096;
    auto backing = open_backing(options);
    REQUIRE(backing);
    alignas(4096) static uint8_t arena[1 << 16];
    const FixedBuffer fixed{arena, sizeof arena};
    auto channel = backing.value()->open_channel(nullptr, &fixed, 1);
    REQUIRE(channel);
    if (cache != Cache::Direct) exercise(*channel.value(), true);
    // From the registered arena, and from memory that O_DIRECT could not take.
    std::vector<uint8_t> copy = pattern(8192 + 1, 5);
    std::memcpy(arena, copy.data() + 1, 8192);
    const std::vector<iovec> from = {{arena, 8192}}, to = {{copy.data() + 1, 8192}};
    Request write = transfer(Operation::Write, 4096, from);
    CHECK_EQ(run(*channel.value(), write), 0);
    std::memset(copy.data(), 0, copy.size());
    Request read = transfer(Operation::Read, 4096, to);
    CHECK_EQ(run(*channel.value(), read), 0);
    CHECK(std::memcmp(copy.data() + 1, arena, 8192) == 0);
    CHECK_EQ(channel.value()->in_flight(), 0u);
  }
}

// A flush never ends within the call that starts it: it is a thread of the kernel that ends it.
TEST(a_reactor_that_sleeps_is_woken_by_what_completes) {
  const Folder folder;
  auto backing = open_backing(file_options(folder.file("data", 1 << 20)));
  REQUIRE(backing);
  reactor::Options options;
  options.spin = 0;
  auto started = reactor::Reactor::start(0, options);
  REQUIRE(started);
  reactor::Reactor& reactor = *started.value();
  std::unique_ptr<Channel> channel;
  test::run_on(reactor, [&] {
    channel = std::move(backing.value()->open_channel(&reactor, nullptr, 0).value());
    reactor.add(channel.get(), reactor::Stage::Block);
  });
  bool woken = true;
  for (int round = 0; round < 50 && woken; round++) {
    std::promise<int> ended;
    Request request{};
    request.operation = Operation::Flush;
    request.context = &ended;
    request.done = [](Request* done, int error) {
      static_cast<std::promise<int>*>(done->context)->set_value(error);
    };
    auto answer = ended.get_future();
    test::run_on(reactor, [&] { channel->submit(&request); });
    woken = answer.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    CHECK(woken);
    if (!woken) test::run_on(reactor, [] {});  // wakes it
    CHECK_EQ(answer.get(), 0);
  }
  CHECK(reactor.counters().sleeps.load() > 0);
  test::run_on(reactor, [&] {
    reactor.remove(channel.get());
    channel.reset();
  });
}

TEST(buffers_that_the_kernel_does_not_register_are_told_and_file_io_works) {
  if (!UringChannel::allowed()) return;
  const Folder folder;
  auto backing = open_backing(file_options(folder.file("data", 1 << 20)));
  REQUIRE(backing);
  alignas(4096) static uint8_t arena[8192];
  for (const bool valid : {true, false}) {
    // Nothing is mapped at the first page: refused as a limit that is too low would be.
    const FixedBuffer fixed{valid ? static_cast<void*>(arena) : reinterpret_cast<void*>(4096),
                            sizeof arena};
    auto channel = backing.value()->open_channel(nullptr, &fixed, 1);
    REQUIRE(bool(channel));
    CHECK_EQ(channel.value()->buffers_refused(), !valid);
    exercise(*channel.value(), true);
  }
  auto none_offered = backing.value()->open_channel(nullptr, nullptr, 0);
  REQUIRE(bool(none_offered));
  CHECK(!none_offered.value()->buffers_refused());
}

TEST(file_through_threads) {
  const Folder folder;
  FileHandle file;
  file.fd = ::open(folder.file("data", 1 << 20).c_str(), O_RDWR);
  file.block_device = file.direct = false;
  file.memory_alignment = 1;
  {
    auto channel = ThreadChannel::open(nullptr, &file);
    REQUIRE(channel);
    exercise(*channel.value(), true);
    CHECK_EQ(channel.value()->in_flight(), 0u);
  }
  close(file.fd);
}

TEST(a_reactor_counts_calls_of_io_uring_and_what_they_submit) {
  if (!UringChannel::allowed()) return;
  const Folder folder;
  auto backing = open_backing(file_options(folder.file("data", 1 << 20)));
  REQUIRE(backing);
  auto started = reactor::Reactor::start(0, {});
  REQUIRE(started);
  reactor::Reactor& reactor = *started.value();
  constexpr size_t kReads = 8;
  std::vector<uint8_t> memory(kReads * 4096);
  iovec pieces[kReads];
  Request reads[kReads]{};
  std::atomic<size_t> done{0};
  std::unique_ptr<Channel> channel;
  test::run_on(reactor, [&] {
    channel = std::move(backing.value()->open_channel(&reactor, nullptr, 0).value());
    reactor.add(channel.get(), reactor::Stage::Block);
    for (size_t i = 0; i < kReads; i++) {
      pieces[i] = {memory.data() + i * 4096, 4096};
      reads[i].operation = Operation::Read;
      reads[i].offset = i * 4096;
      reads[i].length = 4096;
      reads[i].iov = &pieces[i];
      reads[i].iov_count = 1;
      reads[i].context = &done;
      reads[i].done = [](Request* request, int error) {
        if (error == 0) static_cast<std::atomic<size_t>*>(request->context)->fetch_add(1);
      };
      channel->submit(&reads[i]);
    }
    // They leave together, with the next visit of the poller.
    CHECK_EQ(reactor.counters().io_uring_calls.load(), 0u);
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (done < kReads && std::chrono::steady_clock::now() < deadline) test::run_on(reactor, [] {});
  CHECK_EQ(done.load(), kReads);
  CHECK_EQ(reactor.counters().io_uring_submissions.load(), kReads);
  CHECK_EQ(reactor.counters().io_uring_calls.load(), 1u);
  test::run_on(reactor, [&] {
    reactor.remove(channel.get());
    channel.reset();
  });
}

TEST(file_systems_without_fallocate_modes_get_zeros_written) {
  const Folder folder;
  FileHandle file;
  file.fd = ::open(folder.file("data", 4 << 20).c_str(), O_RDWR);
  file.block_device = file.direct = false;
  file.memory_alignment = 1;
  file.no_zero_range = file.no_punch_hole = true;
  auto threads = ThreadChannel::open(nullptr, &file);
  auto uring = UringChannel::allowed() ? UringChannel::open(nullptr, &file, nullptr, 0)
                                       : ThreadChannel::open(nullptr, &file);
  for (Channel* channel : {threads.value().get(), uring.value().get()}) {
    std::vector<uint8_t> data = pattern(3 << 20, 1);
    const std::vector<iovec> iov = {{data.data(), data.size()}};
    Request write = transfer(Operation::Write, 0, iov);
    CHECK_EQ(run(*channel, write), 0);
    CHECK_EQ(range(*channel, Operation::WriteZeroes, 512, (3 << 20) - 1024, false, true), 0);
    Request read = transfer(Operation::Read, 0, iov);
    CHECK_EQ(run(*channel, read), 0);
    std::vector<uint8_t> expected = pattern(3 << 20, 1);
    std::memset(expected.data() + 512, 0, (3 << 20) - 1024);
    CHECK(data == expected);
  }
  threads.value().reset();
  uring.value().reset();
  close(file.fd);
}

TEST(many_requests_in_flight_end_once_each) {
  const Folder folder;
  auto backing = open_backing(file_options(folder.file("data", 16 << 20)));
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  REQUIRE(channel);
  constexpr size_t kCount = 4000;  // more than the ring takes
  std::vector<Request> requests(kCount);
  std::vector<Outcome> outcomes(kCount);
  std::vector<uint8_t> data(kCount * 4096);
  std::vector<iovec> iov(kCount);
  for (size_t i = 0; i < kCount; i++) {
    std::memset(&data[i * 4096], static_cast<int>(i % 251), 4096);
    iov[i] = {&data[i * 4096], 4096};
    requests[i] = Request{};
    requests[i].operation = Operation::Write;
    requests[i].offset = i * 4096;
    requests[i].length = 4096;
    requests[i].iov = &iov[i];
    requests[i].iov_count = 1;
    requests[i].done = record;
    requests[i].context = &outcomes[i];
    channel.value()->submit(&requests[i]);
  }
  for (int i = 0; i < 10'000'000 && channel.value()->in_flight() > 0; i++) channel.value()->poll(0);
  CHECK_EQ(channel.value()->in_flight(), 0u);
  size_t bad = 0;
  for (const Outcome& outcome : outcomes) bad += outcome.calls != 1 || outcome.error != 0;
  CHECK_EQ(bad, 0u);
  std::vector<uint8_t> back(16 << 20);
  const int fd = ::open((folder.path + "/data").c_str(), O_RDONLY);
  CHECK_EQ(pread(fd, back.data(), kCount * 4096, 0), static_cast<ssize_t>(kCount * 4096));
  close(fd);
  CHECK(std::memcmp(back.data(), data.data(), data.size()) == 0);
}

TEST(file_cut_while_exported_reads_fail_and_never_fault) {
  const Folder folder;
  const std::string path = folder.file("data", 1 << 20);
  auto backing = open_backing(file_options(path));
  REQUIRE(backing);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  CHECK_EQ(truncate(path.c_str(), 4096), 0);
  std::vector<uint8_t> in(8192);
  const std::vector<iovec> iov = {{in.data(), in.size()}};
  Request across = transfer(Operation::Read, 0, iov),
          beyond = transfer(Operation::Read, 65536, iov);
  CHECK_EQ(run(*channel.value(), across), ERANGE);
  CHECK_EQ(run(*channel.value(), beyond), ERANGE);
}

TEST(refusals_name_the_path_and_the_remedy) {
  const Folder folder;
  CHECK(has(refusal(file_options(folder.path + "/none"), ENOENT), "truncate -s 1G"));
  CHECK(has(refusal(file_options(folder.path), EISDIR), "is a directory"));
  CHECK(has(refusal(file_options(folder.file("empty", 0)), EINVAL), "is empty"));
  CHECK(has(refusal(file_options(folder.file("odd", 1000)), EINVAL), "truncate -s %512"));
  Options large = file_options(folder.file("small", 4096));
  large.size = 8192;
  CHECK(has(refusal(large, EINVAL), "less than the size asked for"));
  Options block = file_options(folder.file("any", 4096));
  block.block_size = 1024;
  CHECK(has(refusal(block, EINVAL), "use 512 or 4096"));
  CHECK(has(refusal(file_options("/dev/zero"), EINVAL), "neither a file nor a block device"));
  Options memory;
  memory.kind = Kind::Memory;
  memory.size = 1000;
  CHECK(has(refusal(memory, EINVAL), "not a positive multiple"));
}

TEST(a_backing_is_locked_unless_shared) {
  const Folder folder;
  const std::string path = folder.file("data", 1 << 20);
  Options options = file_options(path);
  auto first = open_backing(options);
  REQUIRE(first);
  CHECK(has(refusal(options, EBUSY), ("process " + std::to_string(getpid())).c_str()));
  Options reader = options;
  reader.read_only = true;
  CHECK(has(refusal(reader, EBUSY), "mark the namespace shared"));
  Options shared = options;
  shared.shared = true;
  CHECK(open_backing(shared));
  first.value().reset();
  {
    auto sharing = open_backing(shared);
    CHECK(open_backing(shared));
    CHECK(has(refusal(options, EBUSY), "mark the namespace shared on both sides"));
  }
  CHECK(open_backing(options));
  auto reader_one = open_backing(reader), reader_two = open_backing(reader);
  CHECK(reader_one);
  CHECK(reader_two);
}

TEST(full_disk_is_reported_and_later_writes_work) {
  if (geteuid() != 0) {
    std::fprintf(stderr, "needs root for a small tmpfs: not run\n");
    return;
  }
  const Folder folder;
  // In a mount namespace of this thread's own, so that nothing stays behind.
  bool ran = true;
  std::thread([&] {
    const std::string mount =
        "mount --make-rprivate / && mount -t tmpfs -o size=1m none " + folder.path;
    ran = unshare(CLONE_NEWNS | CLONE_FS) == 0 && system(mount.c_str()) == 0;
    if (ran) fill_the_disk(folder);
  }).join();
  if (!ran) std::fprintf(stderr, "no mount namespace here: not run\n");
}

}  // namespace nvmeof::block

TEST_MAIN
