// Memory that commands name: mapped by the JavaScript thread, registered by each reactor on its
// first use there, unmapped when JavaScript has let go and no reactor holds it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "nvmf/host_engine.h"
#include "reactor/result.h"

namespace nvmeof::addon {

// Anonymous memory, zeroed, in huge pages where it is large enough for them to matter.
class Mapping {
 public:
  static Result<std::shared_ptr<Mapping>> create(size_t bytes);
  Mapping(uint8_t* base, size_t bytes, void* mapped, size_t mapped_bytes)
      : base_(base), bytes_(bytes), mapped_(mapped), mapped_bytes_(mapped_bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* base_;
  size_t bytes_;
  void* mapped_;
  size_t mapped_bytes_;
};

struct Buffer {
  struct Registration {
    nvmf::HostMemory memory{};
    std::unique_ptr<rdma::MemoryRegion> region;
  };
  // Touched by its reactor alone.
  struct OnReactor {
    std::map<uint32_t, Registration> registrations;  // by queue; all at 0 with memory windows
    uint32_t in_flight = 0;
    bool releasing = false;  // tell the JavaScript thread when nothing is in flight
  };

  uint32_t id = 0;
  std::shared_ptr<Mapping> mapping;
  std::vector<OnReactor> on;  // by reactor index
  // The JavaScript thread's.
  uint32_t device = 0;
  std::vector<bool> used;  // reactors that got a command with it
  uint32_t releases_pending = 0;
  bool freed = false;
};

}  // namespace nvmeof::addon
