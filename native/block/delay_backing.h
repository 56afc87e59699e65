// A tool for tests of failover: any backing, whose writes are held for a while before they reach
// it, as a slow or hanging disk would hold them. Reads and flushes pass.
#pragma once
#include "block/backing.h"

namespace nvmeof::block {

std::unique_ptr<Backing> delay_writes(std::unique_ptr<Backing> inner, uint32_t milliseconds);

}  // namespace nvmeof::block
