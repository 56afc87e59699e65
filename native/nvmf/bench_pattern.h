// What the load generator's verification rests on: random numbers from a seed, block contents
// derived from (seed, LBA, generation), and a ledger of the generations that each block may hold.
// One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nvmeof::nvmf {

// xorshift64*.
class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  uint64_t below(uint64_t limit) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * limit) >> 64);
  }

 private:
  uint64_t state_;
};

// Generations count 1 to 255 and again from 1; 0 stands for content that nobody knows.
using Generation = uint8_t;

// Each 8 bytes of a block depend on seed, LBA, generation and place, so that a flipped bit, a block
// in the wrong place, words in the wrong order and an older content all show. `bytes` is a multiple
// of 8.
void fill_block(uint8_t* block, size_t bytes, uint64_t seed, uint64_t lba, Generation generation);
// The offset of the first word that differs; `bytes` when none does.
size_t find_mismatch(const uint8_t* block, size_t bytes, uint64_t seed, uint64_t lba,
                     Generation generation);
// The generation that the block's first word shows; 0 when none.
Generation generation_of(const uint8_t* block, uint64_t seed, uint64_t lba);

// Counts of `blocks` logical blocks from `first_lba` on, in units of one command's blocks. A write
// that failed may or may not have happened: until the next good write every generation from the
// last certain one to the newest one is right.
class BlockLedger {
 public:
  enum class Verdict : uint8_t { Right, Unknown, Wrong };
  struct Finding {
    uint64_t lba;
    size_t offset;        // of the first wrong byte's word in the block
    Generation expected;  // the newest
    Generation found;     // 0: no generation's content
  };

  static uint64_t bytes_for(uint64_t blocks) { return 2 * blocks; }

  // `strict`: a block that was never written here must hold some generation (a read-only run over
  // blocks that an earlier run with the same seed wrote).
  BlockLedger(uint64_t seed, uint64_t first_lba, uint64_t blocks, uint32_t block_bytes,
              uint32_t blocks_per_unit, bool strict);

  bool busy(uint64_t unit) const { return (busy_[unit / 64] >> (unit % 64) & 1) != 0; }
  void set_busy(uint64_t unit, bool value);

  void begin_write(uint64_t unit, uint8_t* data);  // fills it with each block's next generation
  void end_write(uint64_t unit, bool succeeded);
  // Adds the blocks compared to `*verified`. Wrong fills `*finding` with the first wrong block.
  Verdict check_read(uint64_t unit, const uint8_t* data, uint64_t* verified, Finding* finding);

 private:
  Verdict check_block(uint64_t index, const uint8_t* block, Finding* finding);

  const uint64_t seed_, first_lba_;
  const uint32_t block_bytes_, blocks_per_unit_;
  const bool strict_;
  std::vector<Generation> certain_, newest_;
  std::vector<uint64_t> busy_;
};

}  // namespace nvmeof::nvmf
