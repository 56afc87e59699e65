// What becomes of a command of a queue over several paths when a controller has answered it with an
// error (as Linux hosts do: nvme_decide_disposition), or is lost.
#pragma once
#include <cstdint>

namespace nvmeof::nvmf {

enum class Disposition : uint8_t {
  Finish,     // the error is the caller's
  Again,      // on any path, after the delay that the controller asks for
  OtherPath,  // the path cannot serve it now
};

// How often an error that is not the path's is met with another attempt.
inline constexpr uint8_t kRetriesMax = 5;

// `status`: the status field of the completion without the phase bit, SC | SCT << 8 | CRD << 11 |
// M << 13 | DNR << 14.
Disposition disposition_of(uint16_t status, uint8_t retries);

// Command Retry Delay: 0 none, else the index (from 1) of the controller's delays.
inline unsigned retry_delay_of(uint16_t status) {
  return status >> 11 & 3;
}

// Whether a command may be repeated although a controller that is lost may still execute it: it
// changes no data.
bool repeats_freely(uint8_t opcode);

}  // namespace nvmeof::nvmf
