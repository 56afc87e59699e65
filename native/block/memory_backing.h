// Namespaces that live in memory, or nowhere. Both finish inside submit(): there is nothing to wait
// for.
#pragma once
#include "block/backing.h"

namespace nvmeof::block {

Result<std::unique_ptr<Backing>> open_memory(const Options& options);
// Reads give zeros (never another command's old bytes), writes vanish.
Result<std::unique_ptr<Backing>> open_null(const Options& options);

}  // namespace nvmeof::block
