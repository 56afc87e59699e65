// SGL descriptors, capsule checks, response encoding and the errno table, byte by byte.
#include "nvmf/capsule.h"

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::nvmf;
using nvmeof::test::Sqe;
namespace block = nvmeof::block;

TEST(keyed_descriptors_have_a_24_bit_length_and_a_32_bit_key) {
  const Sqe sqe = Sqe(0x02, 1).keyed(0x1122334455667788, 0xABCDEF, 0xFEDCBA98);
  DataBlock out;
  CHECK(!parse_sgl(sqe.bytes.data(), false, 0, &out));
  CHECK(out.kind == DataBlock::Kind::Keyed);
  CHECK(!out.invalidate);
  CHECK_EQ(out.address, 0x1122334455667788u);
  CHECK_EQ(out.length, 0xABCDEFu);
  CHECK_EQ(out.key, 0xFEDCBA98u);
  const Sqe with = Sqe(0x02, 1).keyed(0, 1, 2, 0x4F);
  CHECK(!parse_sgl(with.bytes.data(), false, 0, &out));
  CHECK(out.invalidate);
}

TEST(every_other_descriptor_type_is_refused) {
  for (unsigned type = 0; type < 256; type++) {
    const Sqe sqe = Sqe(0x01, 1).in_capsule(0, 16).byte(39, static_cast<uint8_t>(type));
    DataBlock out;
    const Rejection refused = parse_sgl(sqe.bytes.data(), true, 4096, &out);
    const bool known = type == 0x01 || type == 0x40 || type == 0x4F;
    CHECK_EQ(static_cast<bool>(refused), !known);
    if (!known) {
      CHECK_EQ(refused.status, status::kSglTypeInvalid);
      CHECK_EQ(refused.parameter, 39);
    }
  }
}

TEST(in_capsule_blocks_stay_within_the_received_bytes) {
  struct {
    uint64_t offset;
    uint32_t length, received;
    uint16_t status, parameter;
  } const cases[] = {
      {0, 4096, 4096, 0, kNoParameter},
      {16, 4080, 4096, 0, kNoParameter},
      {4096, 0, 4096, 0, kNoParameter},
      {0, 4097, 4096, status::kSglLengthInvalid, 32},
      {1, 4096, 4096, status::kSglLengthInvalid, 32},
      {4097, 0, 4096, status::kSglOffsetInvalid, 24},
      {~0ull, 2, 4096, status::kSglOffsetInvalid, 24},
      {~0ull - 7, 16, 4096, status::kSglOffsetInvalid, 24},
      {0, ~0u, 4096, status::kSglLengthInvalid, 32},
      {0, 1, 0, status::kSglLengthInvalid, 32},
  };
  for (const auto& c : cases) {
    const Sqe sqe = Sqe(0x01, 1).in_capsule(c.offset, c.length);
    DataBlock out;
    const Rejection refused = parse_sgl(sqe.bytes.data(), true, c.received, &out);
    CHECK_EQ(refused.status, c.status);
    CHECK_EQ(refused.parameter, c.parameter);
  }
  DataBlock out;
  CHECK_EQ(parse_sgl(Sqe(0x02, 1).in_capsule(0, 16).bytes.data(), false, 4096, &out).status,
           status::kSglTypeInvalid);
}

TEST(flags_must_say_sgl_and_not_fused) {
  for (unsigned flags = 0; flags < 256; flags++) {
    const Sqe sqe = Sqe(0x02, 1).byte(1, static_cast<uint8_t>(flags));
    const bool good = (flags & 0xC3) == 0x40;
    const Rejection refused = check_flags(sqe.bytes.data());
    CHECK_EQ(static_cast<bool>(refused), !good);
    if (!good) CHECK_EQ(refused.parameter, 1);
  }
}

TEST(direction_comes_from_opcode_or_fctype) {
  CHECK(transfer_of(Sqe(0x06, 1).bytes.data()) == Transfer::ToHost);          // Identify
  CHECK(transfer_of(Sqe(0x09, 1).bytes.data()) == Transfer::FromHost);        // Set Features
  CHECK(transfer_of(Sqe(0x18, 1).bytes.data()) == Transfer::None);            // Keep Alive
  CHECK(transfer_of(Sqe(0x7F, 1, 0x01).bytes.data()) == Transfer::FromHost);  // Connect
  CHECK(transfer_of(Sqe(0x7F, 1, 0x04).bytes.data()) == Transfer::None);      // Property Get
  CHECK(transfer_of(Sqe(0x7F, 1, 0x06).bytes.data()) == Transfer::ToHost);
}

TEST(a_control_command_without_data_has_no_sgl_to_check) {
  Transfer transfer;
  DataBlock block;
  CHECK(!parse_control(Sqe(0x18, 1).byte(39, 0xFF).bytes.data(), 0, &transfer, &block));
  CHECK(block.kind == DataBlock::Kind::None);
  CHECK_EQ(parse_control(Sqe(0x06, 1).byte(39, 0xFF).bytes.data(), 0, &transfer, &block).status,
           status::kSglTypeInvalid);
  CHECK_EQ(parse_control(Sqe(0x06, 1).byte(1, 0).bytes.data(), 0, &transfer, &block).status,
           status::kInvalidField);
}

TEST(responses_are_encoded_as_the_specification_lays_them_out) {
  uint8_t out[16];
  encode_response({0x0102030405060708, 0x1112, 0x2122, 0x3132, 0x4002}, out);
  const uint8_t expected[16] = {8,    7,    6,    5,    4,    3,    2,    1,
                                0x12, 0x11, 0x22, 0x21, 0x32, 0x31, 0x04, 0x80};
  CHECK(std::memcmp(out, expected, 16) == 0);
}

TEST(errno_values_of_a_backing_become_their_status) {
  using block::Operation;
  CHECK_EQ(status_of_error(0, Operation::Read), status::kSuccess);
  CHECK_EQ(status_of_error(ENOSPC, Operation::Write), 0x4081);
  CHECK_EQ(status_of_error(EIO, Operation::Read), 0x0281);
  CHECK_EQ(status_of_error(EIO, Operation::Write), 0x0280);
  CHECK_EQ(status_of_error(EIO, Operation::Flush), 0x0280);
  CHECK_EQ(status_of_error(ERANGE, Operation::Read), 0x0281);
  CHECK_EQ(status_of_error(EROFS, Operation::Write), 0x4020);
  CHECK_EQ(status_of_error(EOPNOTSUPP, Operation::WriteZeroes), 0x4001);
  CHECK_EQ(status_of_error(ECANCELED, Operation::Read), 0x0007);
  CHECK_EQ(status_of_error(ENOMEM, Operation::Read), 0x0006);
}

TEST_MAIN
