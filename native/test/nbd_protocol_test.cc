// The NBD protocol as bytes: the handshake's answers to options, good and bad, in any cut; which
// requests are refused and how; what replies look like.
#include <algorithm>
#include <vector>

#include "attach/nbd/handshake.h"
#include "attach/nbd/request.h"
#include "support/nbd_client.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::attach;
using namespace nvmeof::attach::nbd;
using namespace nvmeof::test;

namespace {

using State = Handshake::State;

Export small_export() {
  Geometry g;
  g.nsid = 1;
  g.lba_bytes = 512;
  g.lba_count = 2048;
  g.can_write_zeroes = g.can_deallocate = true;
  return Export::of(g, "a test");
}

Bytes flags(uint32_t value) {
  Bytes bytes;
  add32(bytes, value);
  return bytes;
}

struct OptionReply {
  uint32_t option, type;
  Bytes data;
};

struct Talk {
  Export served = small_export();
  Handshake handshake{&served};

  Bytes take() {
    const Bytes out(handshake.output().begin(), handshake.output().end());
    handshake.sent(out.size());
    return out;
  }
  // Says it in pieces of `step` bytes; what is answered, together.
  Bytes say(const Bytes& bytes, size_t step = 1 << 20) {
    Bytes answers;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = std::min(step, bytes.size() - at);
      const size_t used = handshake.feed({bytes.data() + at, length});
      const Bytes out = take();
      answers.insert(answers.end(), out.begin(), out.end());
      if (used == 0 && out.empty()) break;
      at += used;
    }
    return answers;
  }
  void open(uint32_t client = kFixedNewstyle | kNoZeroes) {
    take();
    say(flags(client));
  }
};

std::vector<OptionReply> replies(const Bytes& bytes) {
  std::vector<OptionReply> all;
  for (size_t at = 0; at + 20 <= bytes.size();) {
    CHECK_EQ(get64(&bytes[at]), kOptionReplyMagic);
    const uint32_t length = get32(&bytes[at + 16]);
    if (length > bytes.size() - at - 20) break;
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at) + 20;
    all.push_back({get32(&bytes[at + 8]), get32(&bytes[at + 12]), {begin, begin + length}});
    at += 20 + length;
  }
  return all;
}

// The type of the one reply.
uint32_t reply_type(const Bytes& bytes) {
  const auto all = replies(bytes);
  return all.size() == 1 ? all[0].type : 0;
}

Request request(uint16_t type, uint64_t offset, uint32_t length, uint16_t its_flags = 0) {
  return {its_flags, type, 42, offset, length};
}

}  // namespace

TEST(greets) {
  Talk talk;
  const Bytes greeting = talk.take();
  REQUIRE(greeting.size() == 18);
  CHECK(std::memcmp(greeting.data(), "NBDMAGICIHAVEOPT", 16) == 0);
  CHECK_EQ(get16(&greeting[16]), 3);
  CHECK(talk.handshake.state() == State::ClientFlags);
}

TEST(says_nothing_more_before_the_greeting_left) {
  Talk talk;
  const Bytes client = flags(3);
  CHECK_EQ(talk.handshake.feed(client), size_t{0});
  talk.handshake.sent(5);
  CHECK_EQ(talk.handshake.output().size(), size_t{13});
  CHECK_EQ(talk.handshake.feed(client), size_t{0});
  talk.handshake.sent(13);
  CHECK_EQ(talk.handshake.feed(client), size_t{4});
}

TEST(export_name_with_and_without_zeroes) {
  for (const uint32_t client : {kFixedNewstyle, kFixedNewstyle | kNoZeroes, 0u, kNoZeroes}) {
    Talk talk;
    talk.open(client);
    const Bytes answer = talk.say(option_bytes(option::kExportName));
    REQUIRE(answer.size() == ((client & kNoZeroes) != 0 ? 10u : 134u));
    CHECK_EQ(get64(answer.data()), 2048u * 512);
    CHECK_EQ(get16(&answer[8]), 0x16D);  // has flags, flush, FUA, trim, write zeroes, multi-conn
    CHECK(std::all_of(answer.begin() + 10, answer.end(), [](uint8_t byte) { return byte == 0; }));
    CHECK(talk.handshake.state() == State::Transmission);
    CHECK(!talk.handshake.structured_replies());
  }
}

TEST(only_the_default_export_is_there) {
  Talk talk;
  talk.open();
  const Bytes unknown = talk.say(option_bytes(option::kGo, info_data("disk", {})));
  CHECK_EQ(reply_type(unknown), option_reply::kUnknown);
  CHECK(talk.handshake.state() == State::OptionHeader);
  talk.say(option_bytes(option::kExportName, {'d'}));
  CHECK(talk.handshake.state() == State::Closed);
}

TEST(go_tells_what_is_asked) {
  for (const size_t step : {size_t{1}, size_t{7}, size_t{1} << 20}) {
    Talk talk;
    talk.open();
    CHECK_EQ(reply_type(talk.say(option_bytes(option::kStructuredReply), step)),
             option_reply::kAck);
    const Bytes data = info_data("", {3, 3, 2, 1, 77, 0, 3});
    for (const uint32_t number : {option::kInfo, option::kGo}) {
      const auto all = replies(talk.say(option_bytes(number, data), step));
      REQUIRE(all.size() == 5);
      for (const OptionReply& each : all) CHECK_EQ(each.option, number);
      for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(all[i].type, option_reply::kInfo);
        CHECK_EQ(get16(all[i].data.data()), i);
      }
      REQUIRE(all[0].data.size() == 12);
      CHECK_EQ(get64(&all[0].data[2]), 2048u * 512);
      CHECK_EQ(get16(&all[0].data[10]), 0x16D | 0x80);  // and replies that are whole
      CHECK_EQ(all[1].data.size(), size_t{2});
      CHECK(std::string(all[2].data.begin() + 2, all[2].data.end()) == "a test");
      REQUIRE(all[3].data.size() == 14);
      CHECK_EQ(get32(&all[3].data[2]), 512u);
      CHECK_EQ(get32(&all[3].data[6]), 4096u);
      CHECK_EQ(get32(&all[3].data[10]), 32u << 20);
      CHECK_EQ(all[4].type, option_reply::kAck);
      CHECK(talk.handshake.state() ==
            (number == option::kGo ? State::Transmission : State::OptionHeader));
    }
    CHECK(talk.handshake.structured_replies());
  }
}

TEST(go_without_questions) {
  Talk talk;
  talk.open();
  const auto all = replies(talk.say(option_bytes(option::kGo, info_data("", {}))));
  REQUIRE(all.size() == 2);
  CHECK_EQ(get16(&all[0].data[10]), 0x16D);
  CHECK_EQ(all[1].type, option_reply::kAck);
}

TEST(lists_one_export) {
  Talk talk;
  talk.open();
  const auto all = replies(talk.say(option_bytes(option::kList)));
  REQUIRE(all.size() == 2);
  CHECK_EQ(all[0].type, option_reply::kServer);
  CHECK(all[0].data == Bytes(4));
  CHECK_EQ(all[1].type, option_reply::kAck);
  CHECK_EQ(reply_type(talk.say(option_bytes(option::kList, {0}))), option_reply::kInvalid);
}

TEST(abort_is_acknowledged) {
  Talk talk;
  talk.open();
  CHECK_EQ(reply_type(talk.say(option_bytes(option::kAbort))), option_reply::kAck);
  CHECK(talk.handshake.state() == State::Closed);
  CHECK_EQ(talk.handshake.feed(option_bytes(option::kList)), size_t{0});
}

TEST(other_options_are_unsupported) {
  Talk talk;
  talk.open();
  for (const uint32_t number : {0u, 4u, 5u, 9u, 10u, 11u, 0xFFFFFFFFu}) {
    CHECK_EQ(reply_type(talk.say(option_bytes(number, Bytes(100)))), option_reply::kUnsupported);
  }
  CHECK_EQ(reply_type(talk.say(option_bytes(option::kStructuredReply, {1}))),
           option_reply::kInvalid);
  CHECK(!talk.handshake.structured_replies());
}

TEST(an_option_that_is_too_long_is_passed_over) {
  for (const size_t step : {size_t{100}, size_t{1} << 20}) {
    Talk talk;
    talk.open();
    CHECK_EQ(reply_type(talk.say(option_bytes(option::kGo, Bytes(8193)), step)),
             option_reply::kTooBig);
    CHECK_EQ(reply_type(talk.say(option_bytes(9, Bytes(8192)), step)), option_reply::kUnsupported);
    talk.say(option_bytes(option::kExportName, Bytes(8193)));
    CHECK(talk.handshake.state() == State::Closed);
  }
}

TEST(lengths_in_info_are_checked) {
  const auto answer = [](const Bytes& data) {
    Talk talk;
    talk.open();
    return reply_type(talk.say(option_bytes(option::kInfo, data)));
  };
  CHECK_EQ(answer({}), option_reply::kInvalid);
  CHECK_EQ(answer(Bytes(5)), option_reply::kInvalid);
  Bytes data = info_data("", {1});
  data.push_back(0);
  CHECK_EQ(answer(data), option_reply::kInvalid);
  data.resize(7);
  CHECK_EQ(answer(data), option_reply::kInvalid);
  for (const uint32_t length : {1u, 3u, 0xFFFFFFFFu, 0xFFFFFFFAu}) {
    Bytes wrong = info_data("", {});
    put32(wrong.data(), length);
    CHECK_EQ(answer(wrong), option_reply::kInvalid);
  }
  CHECK_EQ(answer(info_data(std::string(4097, 'x'), {})), option_reply::kInvalid);
  CHECK_EQ(answer(info_data(std::string(4096, 'x'), {})), option_reply::kUnknown);
}

TEST(nonsense_ends_the_handshake) {
  {
    Talk talk;
    talk.open(4);
    CHECK(talk.handshake.state() == State::Closed);
  }
  {
    Talk talk;
    talk.open();
    CHECK(talk.say(option_bytes(option::kList, {}, kOptionMagic + 1)).empty());
    CHECK(talk.handshake.state() == State::Closed);
  }
  // A client of the old kind would not understand an answer.
  Talk talk;
  talk.open(kNoZeroes);
  CHECK(talk.say(option_bytes(option::kList)).empty());
  CHECK(talk.handshake.state() == State::Closed);
}

TEST(flags_follow_the_namespace) {
  Geometry g;
  g.lba_bytes = 8192;
  g.lba_count = 10;
  Export plain = Export::of(g, std::string(10'000, 'x'));
  CHECK_EQ(plain.flags, 1 | 4 | 8 | 256);
  CHECK_EQ(plain.block_min, 8192u);
  CHECK_EQ(plain.block_preferred, 8192u);
  CHECK(plain.description.size() <= 512);
  g.can_deallocate = g.can_write_zeroes = g.read_only = true;
  CHECK_EQ(Export::of(g, "").flags, 1 | 2 | 4 | 256);
  // The longest answer there is.
  Handshake handshake(&plain);
  handshake.sent(18);
  handshake.feed(flags(3));
  handshake.feed(option_bytes(option::kGo, info_data("", {0, 1, 2, 3})));
  CHECK(handshake.output().size() > 600);
}

TEST(requests_are_parsed) {
  Bytes bytes;
  add32(bytes, kRequestMagic);
  add16(bytes, 5);
  add16(bytes, 1);
  add64(bytes, 0x0102030405060708);
  add64(bytes, 1ull << 60);
  add32(bytes, 77);
  const auto parsed = parse_request(std::span<const uint8_t, kRequestBytes>(bytes));
  REQUIRE(bool(parsed));
  CHECK_EQ(parsed->flags, 5);
  CHECK_EQ(parsed->type, 1);
  CHECK_EQ(parsed->cookie, 0x0102030405060708u);
  CHECK_EQ(parsed->offset, 1ull << 60);
  CHECK_EQ(parsed->length, 77u);
  bytes[0] ^= 1;
  CHECK(!parse_request(std::span<const uint8_t, kRequestBytes>(bytes)));
}

TEST(what_is_refused_and_how) {
  struct Case {
    Request request;
    uint32_t expected;
  };
  const uint64_t size = 2048 * 512;
  const Case cases[] = {
      {request(command::kRead, 0, 512), 0},
      {request(command::kRead, size - 512, 512), 0},
      {request(command::kRead, 0, 0), 0},
      {request(command::kRead, 0, 512, command_flag::kDontFragment | command_flag::kFua), 0},
      {request(command::kRead, size, 512), error::kInvalid},
      {request(command::kRead, ~0ull - 511, 512), error::kInvalid},
      {request(command::kRead, 0, 0xFFFFFE00), error::kInvalid},
      {request(command::kRead, 1, 512), error::kInvalid},
      {request(command::kRead, 0, 100), error::kInvalid},
      {request(command::kRead, 0, 512, command_flag::kNoHole), error::kInvalid},
      {request(command::kWrite, 0, 512, command_flag::kFua), 0},
      {request(command::kWrite, size - 512, 1024), error::kNoSpace},
      {request(command::kWrite, 0, 512, command_flag::kDontFragment), error::kInvalid},
      {request(command::kDisconnect, 99, 99, 99), 0},
      {request(command::kFlush, 0, 0), 0},
      {request(command::kFlush, 0, 0, command_flag::kFua), 0},
      {request(command::kTrim, 0, static_cast<uint32_t>(size), command_flag::kFua), 0},
      {request(command::kTrim, 512, static_cast<uint32_t>(size)), error::kInvalid},
      {request(command::kWriteZeroes, 0, 512, command_flag::kNoHole | command_flag::kFua), 0},
      {request(command::kWriteZeroes, size, 512), error::kNoSpace},
      {request(command::kWriteZeroes, 0, 512, 16), error::kInvalid},  // fast zero
      {request(5, 0, 512), error::kInvalid},                          // cache
      {request(7, 0, 512), error::kInvalid},                          // block status
      {request(0xFFFF, 0, 512), error::kInvalid},
  };
  const Export served = small_export();
  for (const Case& each : cases) CHECK_EQ(refusal(each.request, served), each.expected);

  Geometry g;
  g.lba_bytes = 512;
  g.lba_count = 1 << 20;
  const Export bare = Export::of(g, "");
  CHECK_EQ(refusal(request(command::kTrim, 0, 512), bare), error::kInvalid);
  CHECK_EQ(refusal(request(command::kWriteZeroes, 0, 512), bare), error::kInvalid);
  CHECK_EQ(refusal(request(command::kRead, 0, 32 << 20), bare), 0u);
  CHECK_EQ(refusal(request(command::kRead, 0, (32 << 20) + 512), bare), error::kInvalid);
  g.read_only = g.can_deallocate = g.can_write_zeroes = true;
  const Export fixed = Export::of(g, "");
  for (const uint16_t type : {command::kWrite, command::kTrim, command::kWriteZeroes}) {
    CHECK_EQ(refusal(request(type, 0, 512), fixed), error::kPermission);
  }
  CHECK_EQ(refusal(request(command::kRead, 0, 512), fixed), 0u);
  CHECK_EQ(refusal(request(command::kFlush, 0, 0), fixed), 0u);
}

TEST(ends_become_errors) {
  CHECK_EQ(error_of(IoEnd::Ok, 0x281, true), 0u);
  CHECK_EQ(error_of(IoEnd::Disconnected, 0, true), error::kShutdown);
  CHECK_EQ(error_of(IoEnd::TimedOut, 0, true), error::kIo);
  CHECK_EQ(error_of(IoEnd::Failed, 0x281, false), error::kIo);
  CHECK_EQ(error_of(IoEnd::Failed, 0x20, true), error::kPermission);
  CHECK_EQ(error_of(IoEnd::Failed, 0x80, true), error::kNoSpace);
  CHECK_EQ(error_of(IoEnd::Failed, 0x80, false), error::kInvalid);
  CHECK_EQ(error_of(IoEnd::Failed, 0x81, true), error::kNoSpace);
  CHECK_EQ(error_of(IoEnd::Failed, 0x01, true), error::kNotSupported);
}

TEST(operations_of_commands) {
  CHECK(operation_of(request(command::kRead, 0, 0)) == Operation::Read);
  CHECK(operation_of(request(command::kWrite, 0, 0)) == Operation::Write);
  CHECK(operation_of(request(command::kFlush, 0, 0)) == Operation::Flush);
  CHECK(operation_of(request(command::kTrim, 0, 0)) == Operation::Discard);
  CHECK(operation_of(request(command::kWriteZeroes, 0, 0)) == Operation::WriteZeroes);
}

TEST(replies_as_bytes) {
  const Request read = request(command::kRead, 4096, 512);
  const ReplyHead simple = make_reply(read, 0, false);
  CHECK_EQ(simple.length, 16);
  CHECK_EQ(get32(&simple.bytes[0]), kSimpleReplyMagic);
  CHECK_EQ(get32(&simple.bytes[4]), 0u);
  CHECK_EQ(get64(&simple.bytes[8]), 42u);
  CHECK_EQ(get32(&make_reply(read, error::kIo, false).bytes[4]), error::kIo);

  const ReplyHead data = make_reply(read, 0, true);
  CHECK_EQ(data.length, 28);
  CHECK_EQ(get32(&data.bytes[0]), kStructuredReplyMagic);
  CHECK_EQ(get16(&data.bytes[4]), chunk::kDone);
  CHECK_EQ(get16(&data.bytes[6]), chunk::kOffsetData);
  CHECK_EQ(get64(&data.bytes[8]), 42u);
  CHECK_EQ(get32(&data.bytes[16]), 520u);
  CHECK_EQ(get64(&data.bytes[20]), 4096u);

  const ReplyHead failed = make_reply(read, error::kIo, true);
  CHECK_EQ(failed.length, 26);
  CHECK_EQ(get16(&failed.bytes[4]), chunk::kDone);
  CHECK_EQ(get16(&failed.bytes[6]), chunk::kError);
  CHECK_EQ(get32(&failed.bytes[16]), 6u);
  CHECK_EQ(get32(&failed.bytes[20]), error::kIo);
  CHECK_EQ(get16(&failed.bytes[24]), 0);

  const ReplyHead nothing = make_reply(request(command::kRead, 0, 0), 0, true);
  CHECK_EQ(nothing.length, 20);
  CHECK_EQ(get16(&nothing.bytes[6]), chunk::kNone);
  CHECK_EQ(make_reply(request(command::kWrite, 0, 512), 0, true).length, 16);
}

TEST_MAIN
