// Negotiation by a table of options; each answer fits the output whole.
#include "attach/nbd/handshake.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "attach/nbd/protocol.h"

namespace nvmeof::attach::nbd {

namespace {

constexpr size_t kFlagsBytes = 4, kOptionBytes = 16, kReplyBytes = 20;
constexpr size_t kReservedBytes = 124;  // behind the answer to EXPORT_NAME, without kNoZeroes
constexpr unsigned kInfoTypes = 4;

using State = Handshake::State;

// Legal moves: bit `to` of row `from`.
constexpr uint8_t bit(State state) {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(state));
}
template <typename... States>
constexpr uint8_t bits(States... states) {
  return static_cast<uint8_t>((bit(states) | ... | 0));
}
constexpr uint8_t kMoves[] = {
    /* ClientFlags  */ bits(State::OptionHeader, State::Closed),
    /* OptionHeader */ bits(State::OptionData, State::SkippedData, State::Closed),
    /* OptionData   */ bits(State::OptionHeader, State::Transmission, State::Closed),
    /* SkippedData  */ bits(State::OptionHeader),
    /* Transmission */ 0,
    /* Closed       */ 0,
};

}  // namespace

// `answer` gets the option's data, and stays in OptionData unless it ends the handshake.
struct Handshake::Option {
  uint32_t number;
  void (Handshake::*answer)(std::span<const uint8_t> data);
};

const Handshake::Option Handshake::kOptions[] = {
    {option::kExportName, &Handshake::answer_export_name},
    {option::kAbort, &Handshake::answer_abort},
    {option::kList, &Handshake::answer_list},
    {option::kInfo, &Handshake::answer_info},
    {option::kGo, &Handshake::answer_info},
    {option::kStructuredReply, &Handshake::answer_structured_reply},
};

const char* Handshake::to_string(State state) {
  static constexpr const char* kNames[] = {"ClientFlags", "OptionHeader", "OptionData",
                                           "SkippedData", "Transmission", "Closed"};
  return kNames[static_cast<unsigned>(state)];
}

Handshake::Handshake(const Export* offered) : export_(offered) {
  uint8_t* const greeting = append(18);
  put64(greeting, kGreetingMagic);
  put64(greeting + 8, kOptionMagic);
  put16(greeting + 16, kFixedNewstyle | kNoZeroes);
}

void Handshake::move(State to) {
  if ((kMoves[static_cast<unsigned>(state_)] & bit(to)) == 0) {
    std::fprintf(stderr, "nvmeof: NBD handshake %s -> %s\n", to_string(state_), to_string(to));
    std::abort();
  }
  state_ = to;
  have_ = 0;
}

void Handshake::sent(size_t bytes) {
  out_begin_ += bytes;
  if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
}

size_t Handshake::feed(std::span<const uint8_t> bytes) {
  size_t used = 0;
  const auto rest = [&] { return bytes.subspan(used); };
  while (output().empty() && state_ != State::Transmission && state_ != State::Closed) {
    const size_t wanted = state_ == State::ClientFlags    ? kFlagsBytes
                          : state_ == State::OptionHeader ? kOptionBytes
                                                          : length_;
    used += gather(rest(), wanted);
    if (have_ < wanted) break;
    switch (state_) {
      case State::ClientFlags:
        take_flags();
        break;
      case State::OptionHeader:
        take_header();
        break;
      case State::OptionData:
        take_option();
        break;
      default:
        refuse(option_reply::kTooBig, "the option is too long");
        move(State::OptionHeader);
        break;
    }
  }
  return used;
}

// Of data that is skipped only the count is kept.
size_t Handshake::gather(std::span<const uint8_t> bytes, size_t wanted) {
  const size_t taken = std::min(bytes.size(), wanted - have_);
  if (state_ != State::SkippedData) std::copy_n(bytes.begin(), taken, in_.begin() + have_);
  have_ += taken;
  return taken;
}

void Handshake::take_flags() {
  const uint32_t flags = get32(in_.data());
  if ((flags & ~(kFixedNewstyle | kNoZeroes)) != 0) return move(State::Closed);
  fixed_ = (flags & kFixedNewstyle) != 0;
  no_zeroes_ = (flags & kNoZeroes) != 0;
  move(State::OptionHeader);
}

void Handshake::take_header() {
  const bool magic = get64(in_.data()) == kOptionMagic;
  option_ = get32(in_.data() + 8);
  length_ = get32(in_.data() + 12);
  // A client that does not know of answers to options may send this one only.
  const bool answerable = fixed_ || option_ == option::kExportName;
  const bool too_long = length_ > kDataMax;
  if (!magic || !answerable || (too_long && option_ == option::kExportName)) {
    return move(State::Closed);
  }
  move(too_long ? State::SkippedData : State::OptionData);
}

void Handshake::take_option() {
  const std::span<const uint8_t> data(in_.data(), length_);
  const auto* const found =
      std::find_if(std::begin(kOptions), std::end(kOptions),
                   [this](const Option& candidate) { return candidate.number == option_; });
  if (found != std::end(kOptions)) {
    (this->*found->answer)(data);
  } else {
    refuse(option_reply::kUnsupported, "this server does not know the option");
  }
  if (state_ == State::OptionData) move(State::OptionHeader);
}

// Has no way to say no but to hang up.
void Handshake::answer_export_name(std::span<const uint8_t> name) {
  if (!name.empty()) return move(State::Closed);
  const size_t bytes = 10 + (no_zeroes_ ? 0 : kReservedBytes);
  uint8_t* const answer = append(bytes);
  std::fill_n(answer, bytes, uint8_t{0});
  put64(answer, export_->size);
  put16(answer + 8, export_->flags);
  move(State::Transmission);
}

void Handshake::answer_abort(std::span<const uint8_t>) {
  reply(option_reply::kAck, 0);
  move(State::Closed);
}

void Handshake::answer_list(std::span<const uint8_t> data) {
  if (!data.empty()) return refuse(option_reply::kInvalid, "LIST has no data");
  put32(reply(option_reply::kServer, 4), 0);  // length of the name
  reply(option_reply::kAck, 0);
}

void Handshake::answer_structured_reply(std::span<const uint8_t> data) {
  if (!data.empty()) return refuse(option_reply::kInvalid, "STRUCTURED_REPLY has no data");
  structured_ = true;
  reply(option_reply::kAck, 0);
}

// INFO and GO: a name, and a list of what the client wants to know besides.
void Handshake::answer_info(std::span<const uint8_t> data) {
  constexpr std::string_view bad = "the lengths in INFO or GO do not fit";
  if (data.size() < 6) return refuse(option_reply::kInvalid, bad);
  const uint32_t name = get32(data.data());
  if (name > kStringMax || name > data.size() - 6) return refuse(option_reply::kInvalid, bad);
  const uint16_t count = get16(data.data() + 4 + name);
  if (data.size() != size_t{6} + name + size_t{count} * 2) {
    return refuse(option_reply::kInvalid, bad);
  }
  if (name != 0) {
    return refuse(option_reply::kUnknown, "the one export here has the empty name");
  }
  unsigned wanted = 1u << info::kExport;
  for (uint16_t i = 0; i < count; i++) {
    const uint16_t type = get16(data.data() + 6 + size_t{i} * 2);
    if (type < kInfoTypes) wanted |= 1u << type;
  }
  for (uint16_t type = 0; type < kInfoTypes; type++) {
    if ((wanted >> type & 1) != 0) tell(type);
  }
  reply(option_reply::kAck, 0);
  if (option_ == option::kGo) move(State::Transmission);
}

void Handshake::tell(uint16_t type) {
  uint8_t* to = nullptr;
  switch (type) {
    case info::kExport: {
      // May a reply be asked for whole: a question only where it could come in pieces.
      const uint16_t whole = structured_ ? transmission::kDontFragment : 0;
      to = reply(option_reply::kInfo, 12);
      put64(to + 2, export_->size);
      put16(to + 10, export_->flags | whole);
      break;
    }
    case info::kBlockSize:
      to = reply(option_reply::kInfo, 14);
      put32(to + 2, export_->block_min);
      put32(to + 6, export_->block_preferred);
      put32(to + 10, export_->block_max);
      break;
    case info::kDescription:
      to = reply(option_reply::kInfo, 2 + export_->description.size());
      std::copy(export_->description.begin(), export_->description.end(), to + 2);
      break;
    default:  // the name: empty
      to = reply(option_reply::kInfo, 2);
      break;
  }
  put16(to, type);
}

uint8_t* Handshake::append(size_t bytes) {
  if (bytes > out_.size() - out_end_) {
    std::fprintf(stderr, "nvmeof: an NBD answer of %zu bytes does not fit\n", bytes);
    std::abort();
  }
  uint8_t* const at = out_.data() + out_end_;
  out_end_ += bytes;
  return at;
}

uint8_t* Handshake::reply(uint32_t type, size_t bytes) {
  uint8_t* const header = append(kReplyBytes + bytes);
  put64(header, kOptionReplyMagic);
  put32(header + 8, option_);
  put32(header + 12, type);
  put32(header + 16, static_cast<uint32_t>(bytes));
  return header + kReplyBytes;
}

void Handshake::refuse(uint32_t type, std::string_view why) {
  std::copy(why.begin(), why.end(), reply(type, why.size()));
}

}  // namespace nvmeof::attach::nbd
