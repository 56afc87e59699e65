// Words for people: sizes and errno values in error messages and descriptions.
#pragma once
#include <cstdint>
#include <string>

namespace nvmeof::block {

std::string size_text(uint64_t bytes);  // "1 GiB", "1536 KiB", "700 bytes"
std::string errno_text(int error);      // "No space left on device"

}  // namespace nvmeof::block
