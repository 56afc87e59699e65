#include "attach/client/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nvmeof::attach {

Result<std::unique_ptr<SharedMemory>> SharedMemory::create(uint32_t entries, uint64_t data_bytes) {
  std::unique_ptr<SharedMemory> made(new SharedMemory);
  made->layout_ = nvmeof_ring_layout_of(entries, data_bytes);
  const size_t total = made->layout_.total;
  const auto failed = [total](const char* what) {
    const int code = errno;
    return Error{code, std::string(what) + " for shared memory of " + std::to_string(total) +
                           " bytes failed: " + std::strerror(code)};
  };
  made->fd_ = memfd_create("nvmeof-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made->fd_ < 0) return failed("memfd_create");
  if (ftruncate(made->fd_, static_cast<off_t>(total)) != 0) return failed("ftruncate");
  if (fcntl(made->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("sealing");
  }
  void* const mapped = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd_, 0);
  if (mapped == MAP_FAILED) return failed("mmap");
  made->base_ = static_cast<uint8_t*>(mapped);
  return made;
}

void SharedMemory::close_fd() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, layout_.total);
  close_fd();
}

}  // namespace nvmeof::attach
