// What a client says, checked: its Hello and its ring entries. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "attach/namespace_lane.h"
#include "client/ring_layout.h"

namespace nvmeof::attach {

// `bytes` of the first message. Error: which field, and what it may be.
Result<nvmeof_ring_hello> check_hello(const uint8_t* bytes, size_t length);

// Fills in operation, flags and ranges of the request. 0, or the errno value that the entry
// completes with: EINVAL, ENOSPC beyond the namespace's end, EROFS, EOPNOTSUPP.
uint16_t check_entry(const nvmeof_ring_entry& entry, const Geometry& geometry, uint64_t data_bytes,
                     IoRequest* request);

}  // namespace nvmeof::attach
