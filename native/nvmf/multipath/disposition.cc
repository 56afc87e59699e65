#include "nvmf/multipath/disposition.h"

#include <algorithm>
#include <iterator>

#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint16_t kDoNotRetry = 1u << 14;
constexpr unsigned kPathRelated = 3;  // status code type (Base 2.1, figure 101)

constexpr uint8_t kReservationReport = 0x0E;
constexpr uint8_t kFree[] = {io::kFlush, io::kRead, io::kCompare, io::kVerify, kReservationReport};

}  // namespace

Disposition disposition_of(uint16_t status, uint8_t retries) {
  if (status == 0 || (status & kDoNotRetry) != 0) return Disposition::Finish;
  if ((status >> 8 & 7) == kPathRelated) return Disposition::OtherPath;
  return retries < kRetriesMax ? Disposition::Again : Disposition::Finish;
}

bool repeats_freely(uint8_t opcode) {
  return std::find(std::begin(kFree), std::end(kFree), opcode) != std::end(kFree);
}

}  // namespace nvmeof::nvmf
