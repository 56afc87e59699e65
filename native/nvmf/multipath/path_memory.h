// Memory for commands of a queue over several paths: registered on each path when a command first
// takes it there, and again after that path's queue has ended. On the reactor's thread.
#pragma once
#include <array>
#include <memory>

#include "nvmf/multipath/path.h"

namespace nvmeof::nvmf {

class PathMemory;

// All memory of one queue.
class PathMemories {
 public:
  PathMemories() = default;
  ~PathMemories();
  PathMemories(const PathMemories&) = delete;
  PathMemories& operator=(const PathMemories&) = delete;

  std::unique_ptr<RegisteredMemory> add(uint8_t* base, size_t length);
  // The queue behind this path is gone.
  void drop(uint32_t path);

 private:
  friend class PathMemory;
  PathMemory* first_ = nullptr;
};

class PathMemory final : public RegisteredMemory {
 public:
  PathMemory(PathMemories* all, uint8_t* base, size_t length);
  ~PathMemory() override;

  // What to name on that path; an error when it cannot be registered there.
  Result<const HostMemory*> on(uint32_t index, const PathOptions& path);

 private:
  friend class PathMemories;
  PathMemories* all_;  // null: the queue is gone
  PathMemory* previous_ = nullptr;
  PathMemory* next_ = nullptr;
  std::array<std::unique_ptr<RegisteredMemory>, kPathsMax> by_path_;
};

}  // namespace nvmeof::nvmf
