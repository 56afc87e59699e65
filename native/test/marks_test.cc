// Marks: what one open file description says, others see; and they stay as long as the kernel may
// still write for a process that was killed.
#include "block/marks.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "block/backing.h"
#include "test.h"

namespace nvmeof::block {
namespace {

constexpr uint64_t kMark = 0x2bcd'ef01'2345'6789;
constexpr uint64_t kOther = kMark + 1;
constexpr size_t kPage = 4096;
constexpr off_t kPlace = 8192;  // of the write in flight

struct File {
  std::string path;
  int fd;
  File() {
    char name[] = "/tmp/nvmeof-marks-XXXXXX";
    fd = mkstemp(name);
    path = name;
    if (ftruncate(fd, 1 << 20) != 0) std::perror(name);
  }
  ~File() {
    close(fd);
    unlink(path.c_str());
  }
  bool marked(uint64_t mark) const {
    const auto seen = marked_elsewhere(fd, mark, path.c_str());
    CHECK(seen);
    return seen && seen.value();
  }
  Options shared() const {
    Options options;
    options.path = path;
    options.shared = true;
    return options;
  }
};

// Waits for something that another process or thread is about to do; false after 10 s.
bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000; i++) {
    if (condition()) return true;
    usleep(1000);
  }
  return false;
}

// A process that runs `body`, which must not return; pipes carry single bytes both ways.
struct Child {
  pid_t pid = -1;
  int from = -1, to = -1;
  explicit Child(const std::function<void(int in, int out)>& body) {
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) std::abort();
    pid = fork();
    if (pid == 0) {
      body(down[0], up[1]);
      _exit(1);
    }
    close(up[1]), close(down[0]);
    from = up[0], to = down[1];
  }
  ~Child() {
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    close(from), close(to);
  }
  bool heard() const {
    char byte;
    return read(from, &byte, 1) == 1;
  }
  void tell() const {
    if (write(to, "x", 1) != 1) std::perror("tell");
  }
};

void say(int out) {
  if (write(out, "x", 1) != 1) _exit(2);
}

[[noreturn]] void mark_and_wait(const File& file, int out) {
  const int fd = open(file.path.c_str(), O_RDWR);
  if (!set_mark(fd, kMark, true, "child")) _exit(3);
  say(out);
  for (;;) pause();
}

// 'R', 'S', 'D', 'Z', 'T' … of a task; 0 when it is gone.
char state_of(const std::string& task) {
  FILE* file = fopen((task + "/stat").c_str(), "re");
  if (!file) return 0;
  char state = 0;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
  fclose(file);
  return state;
}

bool any_task_in(pid_t pid, char state) {
  const std::string command =
      "for t in /proc/" + std::to_string(pid) + "/task/*/stat; do cut -d')' -f2 $t; done 2>&1";
  FILE* listing = popen(command.c_str(), "re");
  char line[512];
  bool found = false;
  while (listing && fgets(line, sizeof line, listing)) found |= line[1] == state;
  if (listing) pclose(listing);
  return found;
}

// A write of this process that holds the file's lock in the kernel, because the page it reads from
// does not come before release().
class StuckWrite {
 public:
  explicit StuckWrite(int fd) : fd_(fd) {}
  ~StuckWrite() { release(); }
  bool begin() {
    uffd_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
    uffdio_api api{};
    api.api = UFFD_API;
    if (uffd_ < 0 || ioctl(uffd_, UFFDIO_API, &api) != 0) return false;
    page_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register range{};
    range.range = {reinterpret_cast<uint64_t>(page_), kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (ioctl(uffd_, UFFDIO_REGISTER, &range) != 0) return false;
    writer_ = std::thread([this] { wrote_ = pwrite(fd_, page_, kPage, 0); });
    uffd_msg fault;  // now it is in there
    return read(uffd_, &fault, sizeof fault) == sizeof fault;
  }
  void release() {
    if (!writer_.joinable()) return;
    static const uint8_t kFill[kPage] = {'H'};
    uffdio_copy copy{};
    copy.dst = reinterpret_cast<uint64_t>(page_);
    copy.src = reinterpret_cast<uint64_t>(kFill);
    copy.len = kPage;
    CHECK_EQ(ioctl(uffd_, UFFDIO_COPY, &copy), 0);
    writer_.join();
    CHECK_EQ(wrote_, static_cast<ssize_t>(kPage));
    munmap(page_, kPage);
    close(uffd_);
  }

 private:
  int fd_, uffd_ = -1;
  void* page_ = nullptr;
  ssize_t wrote_ = 0;
  std::thread writer_;
};

void on_done(Request*, int) {}

// Marks the file, waits for a byte, writes a page, and never takes the completion.
[[noreturn]] void write_when_told(const File& file, int in, int out) {
  auto backing = open_backing(file.shared());
  if (!backing || !backing.value()->marks() || !backing.value()->set_mark(kMark, true)) _exit(3);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  if (!channel) _exit(4);
  say(out);
  char byte;
  if (read(in, &byte, 1) != 1) _exit(5);
  static uint8_t data[kPage];
  std::memset(data, 'V', sizeof data);
  const iovec iov{data, kPage};
  Request request{};
  request.operation = Operation::Write;
  request.offset = kPlace;
  request.length = kPage;
  request.iov = &iov;
  request.iov_count = 1;
  request.done = on_done;
  channel.value()->submit(&request);
  channel.value()->poll(0);
  say(out);
  for (;;) pause();
}

char byte_at(const File& file) {
  char byte = '?';
  CHECK_EQ(pread(file.fd, &byte, 1, kPlace), ssize_t{1});
  return byte;
}

void kill_while_the_kernel_writes(const char* io_uring) {
  File file;
  Child victim([&](int in, int out) {
    setenv("NVMEOF_IO_URING", io_uring, 1);
    write_when_told(file, in, out);
  });
  REQUIRE(victim.heard());
  CHECK(file.marked(kMark));
  StuckWrite stuck(file.fd);  // released before the victim is waited for: it ends only then
  if (!stuck.begin()) {
    std::fprintf(stderr, "userfaultfd of the kernel's faults needs root: not run\n");
    return;
  }
  victim.tell();
  REQUIRE(victim.heard());
  // The write waits in the kernel for the file's lock.
  REQUIRE(eventually([&] { return any_task_in(victim.pid, 'D'); }));
  kill(victim.pid, SIGKILL);
  const std::string task = "/proc/" + std::to_string(victim.pid);
  // It was asleep; now it waits for its own write on the way out, or is dead to everybody already.
  REQUIRE(eventually([&] { return state_of(task) == 'D' || state_of(task) == 'Z'; }));
  CHECK(file.marked(kMark));
  CHECK_EQ(byte_at(file), '\0');
  stuck.release();
  CHECK(eventually([&] { return !file.marked(kMark); }));
  const char final = byte_at(file);  // written or dropped: that is decided now
  waitpid(victim.pid, nullptr, 0);
  victim.pid = -1;
  CHECK_EQ(byte_at(file), final);
  CHECK(final == 'V' || final == '\0');
}

}  // namespace

TEST(a_mark_is_seen_by_others_only_and_goes_when_it_is_dropped) {
  File file;
  const int first = open(file.path.c_str(), O_RDWR), second = open(file.path.c_str(), O_RDWR);
  CHECK(set_mark(first, kMark, true, "first"));
  CHECK(file.marked(kMark));
  CHECK(!file.marked(kOther));
  CHECK(!marked_elsewhere(first, kMark, "first").value());
  // Two may hold the same one.
  CHECK(set_mark(second, kMark, true, "second"));
  CHECK(set_mark(first, kMark, false, "first"));
  CHECK(file.marked(kMark));
  close(second);
  CHECK(!file.marked(kMark));
  // Dropping what is not held is no error.
  CHECK(set_mark(first, kMark, false, "first"));
  close(first);
}

TEST(numbers_up_to_the_end_are_marks_and_others_are_refused) {
  File file;
  const int other = open(file.path.c_str(), O_RDWR);
  for (const uint64_t mark : {uint64_t{0}, kMarkEnd - 1}) {
    CHECK(set_mark(other, mark, true, "file"));
    CHECK(file.marked(mark));
  }
  for (const uint64_t mark : {kMarkEnd, ~uint64_t{0}}) {
    CHECK_EQ(set_mark(other, mark, true, "file").error().code, EINVAL);
    CHECK_EQ(marked_elsewhere(other, mark, "file").error().code, EINVAL);
  }
  close(other);
}

TEST(only_shared_writable_files_have_marks) {
  File file;
  Options options = file.shared();
  CHECK(open_backing(options).value()->marks());
  options.read_only = true;
  CHECK(!open_backing(options).value()->marks());
  options.read_only = options.shared = false;
  const auto exclusive = open_backing(options);
  CHECK(!exclusive.value()->marks());
  Options memory;
  memory.kind = Kind::Memory;
  memory.size = 1 << 20;
  auto in_memory = open_backing(memory);
  CHECK_EQ(in_memory.value()->set_mark(kMark, true).error().code, ENOTSUP);
  CHECK_EQ(in_memory.value()->marked_elsewhere(kMark).error().code, ENOTSUP);
  const int device = open("/dev/null", O_RDWR);
  CHECK(!marks_reach_everybody(device));
  close(device);
}

TEST(a_stopped_process_keeps_its_mark_and_a_killed_one_loses_it) {
  File file;
  Child child([&](int, int out) { mark_and_wait(file, out); });
  REQUIRE(child.heard());
  CHECK(file.marked(kMark));
  kill(child.pid, SIGSTOP);
  const std::string task = "/proc/" + std::to_string(child.pid);
  REQUIRE(eventually([&] { return state_of(task) == 'T'; }));
  CHECK(file.marked(kMark));
  kill(child.pid, SIGKILL);
  CHECK(eventually([&] { return !file.marked(kMark); }));
}

TEST(the_mark_of_a_killed_process_stays_while_io_uring_writes_for_it) {
  kill_while_the_kernel_writes("1");
}

TEST(the_mark_of_a_killed_process_stays_while_a_thread_of_it_writes) {
  kill_while_the_kernel_writes("0");
}

TEST(a_delayed_write_lands_late_and_reads_pass_it) {
  File file;
  Options options = file.shared();
  options.delay_writes_ms = 60;
  auto backing = open_backing(options);
  REQUIRE(backing);
  CHECK(backing.value()->marks());
  CHECK(backing.value()->describe().find("writes held for 60 ms") != std::string::npos);
  auto channel = backing.value()->open_channel(nullptr, nullptr, 0);
  REQUIRE(channel);
  uint8_t data[512], seen[512];
  std::memset(data, 'D', sizeof data);
  const iovec out{data, sizeof data}, in{seen, sizeof seen};
  struct Counted {
    static void done(Request* request, int error) {
      *static_cast<int*>(request->context) = error == 0 ? 1 : -error;
    }
  };
  int wrote = 0, read_back = 0;
  Request write{};
  write.operation = Operation::Write;
  write.length = sizeof data;
  write.iov = &out;
  write.iov_count = 1;
  write.done = Counted::done;
  write.context = &wrote;
  const reactor::TimeNs began = reactor::monotonic_now();
  channel.value()->submit(&write);
  CHECK_EQ(channel.value()->in_flight(), 1u);
  CHECK(channel.value()->next_deadline() >= began + 60'000'000);
  Request read = write;
  read.operation = Operation::Read;
  read.iov = &in;
  read.context = &read_back;
  channel.value()->submit(&read);
  CHECK(eventually([&] { return channel.value()->poll(0), read_back != 0; }));
  CHECK_EQ(seen[0], uint8_t{0});
  CHECK_EQ(wrote, 0);
  CHECK(eventually([&] { return channel.value()->poll(0), wrote != 0; }));
  CHECK_EQ(wrote, 1);
  CHECK(reactor::monotonic_now() - began >= 60'000'000);
  char byte;
  CHECK_EQ(pread(file.fd, &byte, 1, 0), ssize_t{1});
  CHECK_EQ(byte, 'D');
  // One that is held can be taken back.
  wrote = 0;
  channel.value()->submit(&write);
  channel.value()->cancel_all();
  CHECK_EQ(wrote, -ECANCELED);
  CHECK_EQ(channel.value()->in_flight(), 0u);
}

}  // namespace nvmeof::block

TEST_MAIN
