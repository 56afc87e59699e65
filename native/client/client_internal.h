// What the files of the client library share. Not for its users.
#pragma once
#include "nvmeof_client.h"
#include "ring_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

// A stretch of the data area, in the order of addresses; together they cover all of it.
struct nvmeof_stretch {
  struct nvmeof_stretch* next;
  uint64_t offset;
  uint64_t bytes;
  bool used;
};

struct nvmeof_client {
  int socket;
  uint8_t* memory;
  struct nvmeof_ring_layout layout;
  struct nvmeof_ring_words* words;
  struct nvmeof_ring_entry* submissions;
  const struct nvmeof_ring_completion* completions;
  uint8_t* data;
  uint64_t data_bytes;
  uint32_t entries;
  uint32_t spin_us;
  struct nvmeof_geometry geometry;
  struct nvmeof_stretch* stretches;

  uint32_t queued;     // entries written; the shared tail follows at submit
  uint32_t submitted;  // what the shared tail says
  uint32_t taken;      // completions
  uint32_t empty_polls;
  bool broken;  // the connection is over
  char why[NVMEOF_WHY_BYTES];
};

// Lays the rings over `memory`; the rest of `client` is zero.
void nvmeof_use_memory(struct nvmeof_client* client, void* memory, uint32_t entries,
                       uint64_t data_bytes);
// Reads what is in the socket, without waiting: doorbells, or the end.
void nvmeof_look_at_socket(struct nvmeof_client* client);
void nvmeof_break(struct nvmeof_client* client, const char* why);
int nvmeof_area_begin(struct nvmeof_client* client);
void nvmeof_area_end(struct nvmeof_client* client);

#ifdef __cplusplus
}
#endif
