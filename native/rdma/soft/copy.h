// Copying payload: into the staging area next to its header, and from a received packet into its
// memory region. A vector loop picked at run time (AVX-512, AVX2, portable): glibc's memcpy
// measured slower for payload at odd offsets. Pure, any thread.
#pragma once
#include <cstddef>
#include <cstdint>

namespace nvmeof::rdma::soft {

// Plain copy; the areas do not overlap.
void copy_payload(uint8_t* to, const uint8_t* from, size_t length);

// Copy past the cache when `to` and `length` are multiples of 64, else as copy_payload. This thread
// sees the copy at once; for others it is only ordered before what follows the next copy_fence().
void copy_payload_streaming(uint8_t* to, const uint8_t* from, size_t length);

// Once behind many copies, not behind each: later stores wait here until the copies are in memory.
void copy_fence();

const char* copy_variant();  // for the start-up log: "avx512", "avx2" or "portable"

}  // namespace nvmeof::rdma::soft
