// A namespace that another process has attached (`nvmeof attach ADDRESS NQN --socket PATH`), used
// over shared memory: requests go into a ring that a reactor of that process polls, data lies in
// memory that both share, and while both are busy nobody makes a system call. C11, libc alone.
//
//   struct nvmeof_client* client;
//   char why[NVMEOF_WHY_BYTES];
//   int error = nvmeof_connect("/run/disk.sock", NULL, &client, why);
//   void* data = nvmeof_alloc(client, 4096);
//   nvmeof_queue(client, &(struct nvmeof_io){.operation = NVMEOF_READ, .data = data,
//                                            .offset = 0, .length = 4096, .user_data = 7});
//   nvmeof_submit(client);
//   struct nvmeof_completion done[1];
//   int count = nvmeof_wait(client, done, 1, 1, NULL);
//
// A client belongs to one thread at a time. It is not inherited: after fork() the child opens its
// own. Functions that can fail return a negative errno value.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVMEOF_WHY_BYTES 256

struct nvmeof_client;

struct nvmeof_client_options {
  uint32_t entries;     // requests outstanding at most, up to 4096; 0: 128
  uint64_t data_bytes;  // size of the data area, up to 1 GiB; 0: 16 MiB
  uint32_t spin_us;     // nvmeof_wait looks this long before it sleeps
};

struct nvmeof_geometry {
  uint64_t size_bytes;
  uint32_t block_bytes;   // offsets and lengths are multiples of it
  uint32_t transfer_max;  // bytes of one NVMe command; a longer request becomes several
  bool read_only;
  bool write_cache;  // a completed write is durable after a flush, or with NVMEOF_FUA
  bool can_trim;
  bool can_write_zeroes;
};

enum nvmeof_operation {
  NVMEOF_READ,
  NVMEOF_WRITE,
  NVMEOF_FLUSH,         // offset and length are 0
  NVMEOF_WRITE_ZEROES,  // without data
  NVMEOF_TRIM,          // without data
};

struct nvmeof_io {
  enum nvmeof_operation operation;
  bool fua;         // Write, WriteZeroes: durable when completed
  uint32_t length;  // bytes
  uint64_t offset;  // bytes
  void* data;       // within the data area; untouched until the completion
  uint64_t user_data;
};

struct nvmeof_completion {
  uint64_t user_data;
  int error;        // 0, or an errno value
  uint16_t status;  // of EIO: the NVMe status, SCT << 8 | SC; else 0
};

// `why` holds NVMEOF_WHY_BYTES and gets a sentence on failure; may be NULL, as may `options`.
int nvmeof_connect(const char* path, const struct nvmeof_client_options* options,
                   struct nvmeof_client** client, char* why);
// Completions that were not taken are lost; the server waits for what is in flight.
void nvmeof_close(struct nvmeof_client* client);

const struct nvmeof_geometry* nvmeof_get_geometry(const struct nvmeof_client* client);
uint32_t nvmeof_entries(const struct nvmeof_client* client);
uint32_t nvmeof_outstanding(const struct nvmeof_client* client);

// Page-aligned memory of the data area; NULL when no stretch of it is that long.
void* nvmeof_alloc(struct nvmeof_client* client, size_t bytes);
void nvmeof_free(struct nvmeof_client* client, void* data);

// Puts a request into the ring, for the next nvmeof_submit. -EAGAIN: `entries` are outstanding.
// -EINVAL: `data` is not in the data area. Bounds of the namespace are the server's to check: what
// is beyond them completes with EINVAL.
int nvmeof_queue(struct nvmeof_client* client, const struct nvmeof_io* io);
// Shows the server what was queued.
void nvmeof_submit(struct nvmeof_client* client);

// Takes up to `max` completions, and returns how many there were; never waits. -EPIPE: the server
// is gone, and every request that was outstanding is lost; nvmeof_why() has the reason.
int nvmeof_poll(struct nvmeof_client* client, struct nvmeof_completion* done, unsigned max);
// The same until there are `min`, or the time is over (NULL: no limit). Spins, then sleeps. Do not
// ask for more than is outstanding.
int nvmeof_wait(struct nvmeof_client* client, struct nvmeof_completion* done, unsigned min,
                unsigned max, const struct timespec* timeout);
const char* nvmeof_why(const struct nvmeof_client* client);

#ifdef __cplusplus
}
#endif
