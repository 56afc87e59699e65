#include "nvmf/multipath/path_memory.h"

namespace nvmeof::nvmf {

PathMemories::~PathMemories() {
  for (PathMemory* memory = first_; memory != nullptr; memory = memory->next_) {
    memory->all_ = nullptr;
    for (auto& registered : memory->by_path_) registered.reset();
  }
}

std::unique_ptr<RegisteredMemory> PathMemories::add(uint8_t* base, size_t length) {
  return std::make_unique<PathMemory>(this, base, length);
}

void PathMemories::drop(uint32_t path) {
  for (PathMemory* memory = first_; memory != nullptr; memory = memory->next_)
    memory->by_path_[path].reset();
}

PathMemory::PathMemory(PathMemories* all, uint8_t* at, size_t bytes)
    : RegisteredMemory({at, bytes, nullptr}), all_(all), next_(all->first_) {
  if (next_ != nullptr) next_->previous_ = this;
  all->first_ = this;
}

PathMemory::~PathMemory() {
  if (all_ == nullptr) return;
  (previous_ != nullptr ? previous_->next_ : all_->first_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

Result<const HostMemory*> PathMemory::on(uint32_t index, const PathOptions& path) {
  std::unique_ptr<RegisteredMemory>& registered = by_path_[index];
  if (!registered) {
    auto made = path.engine->register_memory(path.queue, base, length);
    if (!made) return made.error();
    registered = std::move(*made);
  }
  return static_cast<const HostMemory*>(registered.get());
}

}  // namespace nvmeof::nvmf
