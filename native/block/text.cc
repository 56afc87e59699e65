#include "block/text.h"

#include <cstring>

namespace nvmeof::block {

std::string size_text(uint64_t bytes) {
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  unsigned unit = 0;
  while (unit < 5 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    unit++;
  }
  return std::to_string(bytes) + " " + units[unit];
}

std::string errno_text(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof buffer);  // the GNU form: returns the text
}

}  // namespace nvmeof::block
