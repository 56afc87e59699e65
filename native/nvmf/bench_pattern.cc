// Block contents and the ledger of their generations.
#include "nvmf/bench_pattern.h"

#include <cstring>

namespace nvmeof::nvmf {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// SplitMix64's finalizer: a bijection in which every input bit reaches every output bit.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

uint64_t lba_key(uint64_t seed, uint64_t lba) {
  return mix(mix(seed + kGolden) + lba);
}
uint64_t block_key(uint64_t base, Generation generation) {
  return mix(base + generation);
}

Generation after(Generation generation) {
  return generation == 255 ? Generation{1} : static_cast<Generation>(generation + 1);
}
// Steps from one generation to a later one.
unsigned distance(Generation from, Generation to) {
  return (to + 255u - from) % 255u;
}

}  // namespace

Random::Random(uint64_t seed) : state_(mix(seed + kGolden)) {
  if (state_ == 0) state_ = kGolden;  // the one state that never changes
}

void fill_block(uint8_t* block, size_t bytes, uint64_t seed, uint64_t lba, Generation generation) {
  uint64_t word = block_key(lba_key(seed, lba), generation);
  for (size_t at = 0; at < bytes; at += 8, word += kGolden) std::memcpy(block + at, &word, 8);
}

size_t find_mismatch(const uint8_t* block, size_t bytes, uint64_t seed, uint64_t lba,
                     Generation generation) {
  uint64_t word = block_key(lba_key(seed, lba), generation);
  // Without a branch per word, so that the compiler can use vectors.
  uint64_t difference = 0, expected = word;
  for (size_t at = 0; at < bytes; at += 8, expected += kGolden) {
    uint64_t found;
    std::memcpy(&found, block + at, 8);
    difference |= found ^ expected;
  }
  if (difference == 0) return bytes;
  size_t at = 0;
  while (std::memcmp(block + at, &word, 8) == 0) at += 8, word += kGolden;
  return at;
}

Generation generation_of(const uint8_t* block, uint64_t seed, uint64_t lba) {
  uint64_t word;
  std::memcpy(&word, block, 8);
  const uint64_t base = lba_key(seed, lba);
  for (unsigned generation = 1; generation <= 255; generation++) {
    if (block_key(base, static_cast<Generation>(generation)) == word) {
      return static_cast<Generation>(generation);
    }
  }
  return 0;
}

BlockLedger::BlockLedger(uint64_t seed, uint64_t first_lba, uint64_t blocks, uint32_t block_bytes,
                         uint32_t blocks_per_unit, bool strict)
    : seed_(seed),
      first_lba_(first_lba),
      block_bytes_(block_bytes),
      blocks_per_unit_(blocks_per_unit),
      strict_(strict),
      certain_(blocks),
      newest_(blocks),
      busy_(blocks / blocks_per_unit / 64 + 1) {}

void BlockLedger::set_busy(uint64_t unit, bool value) {
  const uint64_t bit = 1ull << (unit % 64);
  busy_[unit / 64] = value ? busy_[unit / 64] | bit : busy_[unit / 64] & ~bit;
}

void BlockLedger::begin_write(uint64_t unit, uint8_t* data) {
  const uint64_t begin = unit * blocks_per_unit_;
  for (uint64_t i = begin; i < begin + blocks_per_unit_; i++, data += block_bytes_) {
    newest_[i] = after(newest_[i]);
    fill_block(data, block_bytes_, seed_, first_lba_ + i, newest_[i]);
  }
}

void BlockLedger::end_write(uint64_t unit, bool succeeded) {
  if (!succeeded) return;
  const uint64_t begin = unit * blocks_per_unit_;
  for (uint64_t i = begin; i < begin + blocks_per_unit_; i++) certain_[i] = newest_[i];
}

BlockLedger::Verdict BlockLedger::check_read(uint64_t unit, const uint8_t* data, uint64_t* verified,
                                             Finding* finding) {
  Verdict all = Verdict::Right;
  const uint64_t begin = unit * blocks_per_unit_;
  for (uint64_t i = begin; i < begin + blocks_per_unit_; i++, data += block_bytes_) {
    const Verdict verdict = check_block(i, data, all == Verdict::Wrong ? nullptr : finding);
    if (verdict != Verdict::Unknown) (*verified)++;
    if (verdict > all) all = verdict;
  }
  return all;
}

BlockLedger::Verdict BlockLedger::check_block(uint64_t index, const uint8_t* block,
                                              Finding* finding) {
  const uint64_t lba = first_lba_ + index;
  const Generation certain = certain_[index], newest = newest_[index];
  if (certain != 0 && certain == newest &&
      find_mismatch(block, block_bytes_, seed_, lba, newest) == block_bytes_) {
    return Verdict::Right;
  }
  const Generation found = generation_of(block, seed_, lba);
  // What nobody here wrote for certain may be anything, or what an earlier run left; but a block
  // that begins like one of ours is whole.
  if (found == 0 && certain == 0 && (!strict_ || newest != 0)) return Verdict::Unknown;
  const bool allowed =
      found != 0 && (certain == 0 || distance(certain, found) <= distance(certain, newest));
  const Generation compared = found != 0 ? found : newest;
  const size_t offset = find_mismatch(block, block_bytes_, seed_, lba, compared);
  if (allowed && offset == block_bytes_) {
    if (newest == 0) certain_[index] = newest_[index] = found;  // from now on we know
    return Verdict::Right;
  }
  if (finding != nullptr) *finding = {lba, offset % block_bytes_, newest, found};
  return Verdict::Wrong;
}

}  // namespace nvmeof::nvmf
