// Any bytes from a client over shared memory: its hello, its messages, its ring entries and
// indices, in any order with a lane that ends requests when it likes. Afterwards nothing may be
// left in use; the fake lane stops the process over a range that was not checked.
//
// Input: a byte with the length of the hello, its bytes (length 255: a right one), then records of
// a kind and what it takes, as in kKinds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "attach/client/client_session.h"
#include "client/ring_layout.h"
#include "support/fake_lane.h"
#include "support/receive_answer.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace nvmeof;
using namespace nvmeof::test;

namespace {

constexpr uint32_t kEntries = 8;
constexpr uint64_t kData = 16 << 10;
constexpr reactor::TimeNs kTick = 3'000'000;

struct Input {
  const uint8_t* bytes;
  size_t left;
  uint64_t number(size_t width) {
    uint64_t value = 0;
    for (size_t i = 0; i < width && left > 0; i++, left--) value |= uint64_t{*bytes++} << 8 * i;
    return value;
  }
  size_t take(void* to, size_t length) {
    length = std::min(length, left);
    if (length > 0) std::memcpy(to, bytes, length);
    bytes += length;
    left -= length;
    return length;
  }
};

// The client's side and the session.
struct World {
  World() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    client = ends[1];
    session = std::make_unique<attach::ClientSession>(ends[0], &lane, &counters, 0);
  }
  ~World() {
    if (client >= 0) close(client);
    if (memory != nullptr) munmap(memory, layout.total);
  }

  void hello(Input& input) {
    uint8_t bytes[254] = {};
    size_t length = input.number(1);
    nvmeof_ring_hello right = {NVMEOF_RING_MAGIC, NVMEOF_RING_VERSION, kEntries, 0, kData};
    if (length == 255) {
      std::memcpy(bytes, &right, length = sizeof right);
    } else {
      length = input.take(bytes, length);
      // Memory of some size only, so that an input does not take a gigabyte.
      if (length == sizeof right) {
        std::memcpy(&right, bytes, sizeof right);
        if (right.data_bytes % NVMEOF_RING_PAGE == 0 && right.data_bytes > (1 << 20))
          right.data_bytes |= NVMEOF_RING_DATA_MAX;
        std::memcpy(bytes, &right, sizeof right);
      }
    }
    send(client, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    turn();
    map(right);
  }

  void map(const nvmeof_ring_hello& said) {
    nvmeof_ring_answer answer;
    int fd = -1;
    if (receive_answer(client, MSG_DONTWAIT, &answer, &fd) <= 0 || fd < 0) return;
    entries = said.entries;
    layout = nvmeof_ring_layout_of(said.entries, said.data_bytes);
    void* const mapped = mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) std::abort();
    memory = static_cast<uint8_t*>(mapped);
  }

  void turn() {
    session->take(now += kTick);
    session->publish();
  }
  uint32_t* tail() { return &reinterpret_cast<nvmeof_ring_words*>(memory)->submission_tail; }

  FakeLane lane{64 * 512};
  attach::ClientCounters counters;
  int client = -1;
  std::unique_ptr<attach::ClientSession> session;
  uint8_t* memory = nullptr;
  nvmeof_ring_layout layout{};
  uint32_t entries = kEntries;
  reactor::TimeNs now = 0;
};

void add_entry(World& world, Input& input) {
  uint8_t* const slot = world.memory + world.layout.submissions +
                        size_t{*world.tail() & (world.entries - 1)} * sizeof(nvmeof_ring_entry);
  input.take(slot, sizeof(nvmeof_ring_entry));
  ++*world.tail();
}
// The fields that a right entry has, in seven bytes.
void add_likely_entry(World& world, Input& input) {
  nvmeof_ring_entry entry{};
  entry.opcode = static_cast<uint8_t>(input.number(1));
  entry.flags = static_cast<uint8_t>(input.number(1));
  entry.offset = input.number(2) * 256;
  entry.length = static_cast<uint32_t>(input.number(1) * 256);
  entry.data = input.number(2);
  uint8_t bytes[sizeof entry];
  std::memcpy(bytes, &entry, sizeof entry);
  Input made{bytes, sizeof bytes};
  add_entry(world, made);
}
void move_tail(World& world, Input& input) {
  *world.tail() += static_cast<uint32_t>(input.number(4));
}
void scribble(World& world, Input& input) {
  world.memory[input.number(2) % (world.layout.data)] = static_cast<uint8_t>(input.number(1));
}
void message(World& world, Input& input) {
  uint8_t bytes[255] = {};
  send(world.client, bytes, input.number(1), MSG_DONTWAIT | MSG_NOSIGNAL);
}
void toggle_hold(World& world, Input&) {
  world.lane.hold = !world.lane.hold;
}
void release(World& world, Input& input) {
  world.lane.end = static_cast<attach::IoEnd>(input.number(1) % 3);
  world.lane.release(1);
}
void fall_asleep(World& world, Input&) {
  world.session->arm();
  if (world.session->next_deadline() < world.now) std::abort();
}
void listen(World& world, Input&) {
  char bell[2];
  while (recv(world.client, bell, sizeof bell, MSG_DONTWAIT) > 0) continue;
}
void let_time_pass(World& world, Input&) {
  world.now += attach::ClientSession::kGreetingLimit;
}
void close_server(World& world, Input&) {
  world.session->end(ESHUTDOWN, "closed");
}
void change_namespace(World& world, Input& input) {
  const uint64_t bits = input.number(1);
  world.lane.shape.read_only = bits & 1;
  world.lane.shape.can_deallocate = bits & 2;
  world.lane.shape.can_write_zeroes = bits & 4;
  world.lane.shape.volatile_write_cache = bits & 8;
}

struct Kind {
  void (*run)(World& world, Input& input);
  bool needs_memory;
};
constexpr Kind kKinds[] = {
    {add_entry, true}, {add_likely_entry, true}, {move_tail, true},     {scribble, true},
    {message, false},  {toggle_hold, false},     {release, false},      {fall_asleep, false},
    {listen, false},   {let_time_pass, false},   {close_server, false}, {change_namespace, false},
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "after the run: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  World world;
  Input input{bytes, size};
  if (size > 1 && bytes[0] == 254) {  // the lane takes no memory
    world.lane.refuse_memory = true;
    input = {bytes + 1, size - 1};
  }
  world.hello(input);
  while (input.left > 0) {
    const uint8_t first = static_cast<uint8_t>(input.number(1));
    const Kind& kind = kKinds[(first & 0x7F) % std::size(kKinds)];
    if (kind.needs_memory && world.memory == nullptr) continue;
    kind.run(world, input);
    if (!(first & 0x80)) world.turn();
  }
  close(std::exchange(world.client, -1));
  world.lane.hold = false;
  world.turn();
  world.lane.release();
  // A look handles a bounded number of messages that were left in the socket.
  for (int i = 0; i < 1000 && world.session->is_listening(); i++) world.turn();
  world.lane.release();
  world.turn();
  require(world.session->state() == attach::ClientSession::State::Over, "the session is not over");
  require(world.lane.in_flight() == 0, "a request is left");
  require(world.lane.regions == 0, "memory is left registered");
  return 0;
}
