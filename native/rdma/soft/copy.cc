// Payload copies by run-time dispatch; see copy.h.
#include "rdma/soft/copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nvmeof::rdma::soft {
namespace {

using Copy = void (*)(uint8_t*, const uint8_t*, size_t);
struct Variant {
  const char* name;
  Copy plain, streaming;
};

void portable(uint8_t* to, const uint8_t* from, size_t length) {
  if (length != 0) std::memcpy(to, from, length);
}

#if defined(__x86_64__)
// The tail is one vector that overlaps what was copied already; `length` is at least 64.
__attribute__((target("avx512f"))) void avx512(uint8_t* to, const uint8_t* from, size_t length) {
  if (length < 64) return portable(to, from, length);
  size_t i = 0;
  for (; i + 64 <= length; i += 64) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
  if (i < length) _mm512_storeu_si512(to + length - 64, _mm512_loadu_si512(from + length - 64));
}
__attribute__((target("avx512f"))) void avx512_streaming(uint8_t* to, const uint8_t* from,
                                                         size_t length) {
  for (size_t i = 0; i < length; i += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
}
__attribute__((target("avx2"))) void avx2(uint8_t* to, const uint8_t* from, size_t length) {
  if (length < 64) return portable(to, from, length);
  const auto copy32 = [&](size_t at) __attribute__((target("avx2"))) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
  };
  size_t i = 0;
  for (; i + 64 <= length; i += 64) {
    copy32(i);
    copy32(i + 32);
  }
  if (i < length) {
    copy32(length - 64);
    copy32(length - 32);
  }
}
__attribute__((target("avx2"))) void avx2_streaming(uint8_t* to, const uint8_t* from,
                                                    size_t length) {
  for (size_t i = 0; i < length; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}
#endif

Variant pick() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return {"avx512", avx512, avx512_streaming};
  if (__builtin_cpu_supports("avx2")) return {"avx2", avx2, avx2_streaming};
#endif
  return {"portable", portable, portable};
}
const Variant kVariant = pick();

}  // namespace

void copy_payload(uint8_t* to, const uint8_t* from, size_t length) {
  kVariant.plain(to, from, length);
}

void copy_payload_streaming(uint8_t* to, const uint8_t* from, size_t length) {
  if (((reinterpret_cast<uintptr_t>(to) | length) & 63) == 0)
    kVariant.streaming(to, from, length);
  else
    kVariant.plain(to, from, length);
}

void copy_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

const char* copy_variant() {
  return kVariant.name;
}

}  // namespace nvmeof::rdma::soft
