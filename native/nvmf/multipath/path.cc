#include "nvmf/multipath/path.h"

#include <algorithm>

namespace nvmeof::nvmf {

void PathChoice::update(const Paths& paths) {
  uint8_t best = kPathUnusable;
  for (const Path& path : paths) {
    if (path.usable()) best = std::min(best, path.to.rank);
  }
  count_ = 0;
  for (uint32_t i = 0; i < kPathsMax; i++) {
    if (paths[i].usable() && paths[i].to.rank == best)
      candidates_[count_++] = static_cast<uint8_t>(i);
  }
  std::stable_sort(candidates_.begin(), candidates_.begin() + count_, [&](uint8_t a, uint8_t b) {
    return paths[a].to.distance < paths[b].to.distance;
  });
  turn_ = 0;
}

uint32_t PathChoice::next(const Paths& paths) {
  if (count_ == 0) return kPathsMax;
  if (count_ == 1 || policy_ == PathPolicy::Numa) return candidates_[0];
  turn_ = turn_ + 1 < count_ ? turn_ + 1 : 0;
  if (policy_ == PathPolicy::RoundRobin) return candidates_[turn_];
  uint32_t best = candidates_[turn_];
  for (uint32_t step = 1; step < count_; step++) {
    const uint32_t at = turn_ + step < count_ ? turn_ + step : turn_ + step - count_;
    const uint32_t other = candidates_[at];
    if (paths[other].sent.size() < paths[best].sent.size()) best = other;
  }
  return best;
}

}  // namespace nvmeof::nvmf
