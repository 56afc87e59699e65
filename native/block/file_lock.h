// Who else uses a file or device: the advisory lock that keeps two targets apart, and what the
// system knows of mounts and loop devices. Control thread only.
#pragma once
#include <string>

#include "reactor/result.h"

namespace nvmeof::block {

// Takes the lock on an open file (exclusive, or shared for read-only exports). The error names the
// holder where known.
Result<void> lock_file(int fd, const std::string& path, bool shared_lock);

// Text that says who uses it ("/dev/loop3", "mounted at /srv"); empty when nobody does.
std::string user_of_file(const std::string& path);

}  // namespace nvmeof::block
