// Any bytes from NBD clients: to the handshake alone, and to a connection over a lane in memory,
// through a socket pair. What comes back is looked at as a client would; afterwards nothing may be
// left in use.
//
// Input: a control byte, then the bytes. Control bits: 0 the handshake alone, 1 the opening of a
// client goes first (its bytes are requests then), 2 with structured replies, 3 requests are held
// and end late, 4 and they fail, 5 the namespace is read-only. Bits 6 and 7: the size of the pieces
// in which the bytes arrive.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "attach/nbd/connection_group.h"
#include "support/fake_lane.h"
#include "support/nbd_client.h"

using namespace nvmeof;
using namespace nvmeof::attach;
using namespace nvmeof::attach::nbd;
using namespace nvmeof::test;

namespace {

constexpr size_t kPieces[] = {1, 7, 100, 1 << 16};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Whole answers to options, or the answer to EXPORT_NAME at the end.
void check_answers(std::span<const uint8_t> bytes, bool transmission) {
  while (bytes.size() >= 20 && get64(bytes.data()) == kOptionReplyMagic) {
    const uint32_t length = get32(&bytes[16]);
    require(length <= bytes.size() - 20, "an answer is not whole");
    bytes = bytes.subspan(20 + length);
  }
  const bool old = transmission && (bytes.size() == 10 || bytes.size() == 134);
  require(bytes.empty() || old, "an answer that no client knows");
}

void fuzz_handshake(std::span<const uint8_t> bytes, size_t piece, const Export& served) {
  Handshake handshake(&served);
  handshake.sent(handshake.output().size());
  while (!bytes.empty()) {
    const size_t used = handshake.feed(bytes.first(std::min(piece, bytes.size())));
    const auto out = handshake.output();
    const bool over = handshake.state() == Handshake::State::Transmission;
    check_answers(out, over);
    handshake.sent(out.size());
    if (used == 0 && out.empty()) {
      require(over || handshake.state() == Handshake::State::Closed, "it is stuck");
      return;
    }
    bytes = bytes.subspan(used);
  }
}

// Replies in whole, and no more of them than requests.
void check_replies(std::span<const uint8_t> bytes, uint64_t requests, bool structured) {
  while (bytes.size() >= 16) {
    const uint32_t magic = get32(bytes.data());
    if (magic == kStructuredReplyMagic) {
      require(structured && bytes.size() >= 20, "a structured reply was not asked for");
      const uint32_t length = get32(&bytes[16]);
      if (length > bytes.size() - 20) return;  // cut off by the end of the connection
      bytes = bytes.subspan(20 + length);
    } else {
      require(magic == kSimpleReplyMagic, "no reply");
      // The data of a simple reply has a length that only its request tells.
      if (!structured) return;
      bytes = bytes.subspan(16);
    }
    require(requests-- > 0, "more replies than requests");
  }
}

void fuzz_connection(std::span<const uint8_t> bytes, uint8_t control, FakeLane& lane,
                     const Export& served) {
  NbdCounters counters{};
  auto created = ConnectionGroup::create(&lane, &served, &counters);
  require(bool(created), "no group");
  ConnectionGroup& group = **created;
  int pair[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "no socket pair");
  group.given++;
  group.adopt(pair[0]);
  Bytes got;
  const auto turn = [&] {
    group.read(1);
    group.write();
    uint8_t more[65536];
    const ssize_t length = recv(pair[1], more, sizeof more, 0);
    if (length > 0) got.insert(got.end(), more, more + length);
  };
  const auto say = [&](std::span<const uint8_t> all, size_t piece) {
    while (!all.empty()) {
      const size_t length = std::min(piece, all.size());
      const ssize_t sent = ::send(pair[1], all.data(), length, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return;
      if (sent > 0) all = all.subspan(static_cast<size_t>(sent));
      turn();
    }
  };
  const bool opened = (control & 2) != 0, structured = (control & 4) != 0;
  if (opened) {
    say(opening(structured), 1 << 16);
    for (int i = 0; i < 8; i++) turn();
    require(got.size() == opening_answers(structured), "the opening was not answered");
    got.clear();
  }
  lane.hold = (control & 8) != 0;
  if ((control & 16) != 0) {
    lane.end = IoEnd::Failed;
    lane.status = 0x281;
  }
  say(bytes, kPieces[control >> 6]);
  lane.hold = false;
  for (int i = 0; i < 8; i++) {
    lane.release();
    turn();
  }
  if (opened) check_replies(got, counters.requests, structured);
  ::close(pair[1]);
  for (int i = 0; i < 4; i++) {
    lane.release();
    group.read(1);
    group.write();
  }
  require(group.empty(), "a connection is left");
  require(lane.in_flight() == 0 && lane.regions == 0, "something of the lane is left");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const uint8_t control = input[0];
  const std::span<const uint8_t> bytes(input + 1, size - 1);
  FakeLane lane(64 * 1024);
  lane.shape.read_only = (control & 32) != 0;
  const Export served = Export::of(lane.shape, "fuzz");
  if ((control & 1) != 0) {
    fuzz_handshake(bytes, kPieces[control >> 6], served);
  } else {
    fuzz_connection(bytes, control, lane, served);
  }
  return 0;
}
