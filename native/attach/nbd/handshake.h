// The first phase of an NBD connection: fixed newstyle negotiation, the server's half. Bytes in,
// bytes out; knows nothing of sockets. There is one export, the default one: its name is empty.
//
//   ClientFlags -> OptionHeader -> OptionData -> OptionHeader ... -> Transmission
//                              \-> SkippedData (too long) -/     \-> Closed
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "attach/nbd/export.h"

namespace nvmeof::attach::nbd {

class Handshake {
 public:
  enum class State : uint8_t {
    ClientFlags,
    OptionHeader,
    OptionData,
    SkippedData,
    Transmission,  // final: what follows is requests
    Closed,        // final: the connection ends when the output has left
  };

  // The greeting is the first output. `offered` outlives this.
  explicit Handshake(const Export* offered);

  // Takes in what it can use and returns how much that was. Stops while there is output, so that a
  // client that does not read its answers gets no further ones.
  size_t feed(std::span<const uint8_t> bytes);
  std::span<const uint8_t> output() const {
    return {out_.data() + out_begin_, out_end_ - out_begin_};
  }
  void sent(size_t bytes);

  State state() const { return state_; }
  bool structured_replies() const { return structured_; }
  static const char* to_string(State state);

 private:
  struct Option;
  static const Option kOptions[];

  void move(State to);
  size_t gather(std::span<const uint8_t> bytes, size_t wanted);
  void take_flags();
  void take_header();
  void take_option();
  void answer_export_name(std::span<const uint8_t> name);
  void answer_abort(std::span<const uint8_t> data);
  void answer_list(std::span<const uint8_t> data);
  void answer_info(std::span<const uint8_t> data);
  void answer_structured_reply(std::span<const uint8_t> data);

  uint8_t* append(size_t bytes);
  uint8_t* reply(uint32_t type, size_t bytes);
  void refuse(uint32_t type, std::string_view why);
  void tell(uint16_t type);

  static constexpr size_t kDataMax = 8192;
  static constexpr size_t kOutputMax = 1024;

  const Export* const export_;
  State state_ = State::ClientFlags;
  bool fixed_ = false, no_zeroes_ = false, structured_ = false;
  uint32_t option_ = 0;
  uint32_t length_ = 0;  // of the option's data
  size_t have_ = 0;      // bytes gathered, or skipped, of what the state needs
  size_t out_begin_ = 0, out_end_ = 0;
  std::array<uint8_t, kDataMax> in_;
  std::array<uint8_t, kOutputMax> out_;
};

}  // namespace nvmeof::attach::nbd
