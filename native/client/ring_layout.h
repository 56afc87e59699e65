// What a client and the process that attached a namespace share: the messages of their socket and
// the memory of the rings. C11 and C++20. Everything is in the machine's byte order: both ends run
// on one machine.
//
// Over a SOCK_SEQPACKET socket the client says Hello and is answered by a Welcome, which carries
// the shared memory as SCM_RIGHTS. From then on each end sends one byte (a doorbell) to wake the
// other, and the server may send a Goodbye; the end of the connection ends everything. Doorbells
// travel over the socket and not through eventfds, because an eventfd's O_NONBLOCK belongs to both
// ends: a client could make the server's reactor block.
//
// The memory: a page of words, the submission ring, the completion ring, the data area. The client
// has at most `entries` requests outstanding, from submission until it has taken the completion.
// So neither ring can overflow, and each needs one shared word only: how far it was filled.
//
// Sleeping, for either end: store 1 in the own `*_sleeping`, look at the other's tail once more,
// wait for the socket. The other publishes its tail, then looks at `*_sleeping`, and rings if it
// took that from 1 to 0. All four are sequentially consistent, so at least one sees the other.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define NVMEOF_RING_MAGIC 0x4d564e72u  // "rNVM"
#define NVMEOF_RING_VERSION 1u

#define NVMEOF_RING_PAGE 4096u
#define NVMEOF_RING_ENTRIES_MAX 4096u
#define NVMEOF_RING_DATA_MAX (UINT64_C(1) << 30)  // bytes of one client's data area
#define NVMEOF_RING_REASON_BYTES 200u

enum nvmeof_ring_message { NVMEOF_RING_WELCOME = 1, NVMEOF_RING_GOODBYE = 2 };

// Client to server, the first message and the only one that is longer than a byte.
struct nvmeof_ring_hello {
  uint32_t magic;
  uint32_t version;
  uint32_t entries;  // of each ring: a power of two up to NVMEOF_RING_ENTRIES_MAX
  uint32_t reserved;
  uint64_t data_bytes;  // a multiple of the page, up to NVMEOF_RING_DATA_MAX
};

enum nvmeof_ring_flags {
  NVMEOF_RING_READ_ONLY = 1,
  NVMEOF_RING_WRITE_CACHE = 2,  // a completed write is durable after a flush only
  NVMEOF_RING_DISCARD = 4,
  NVMEOF_RING_WRITE_ZEROES = 8,
};

// Server to client. Welcome: the answer to Hello; when `error` is 0 the shared memory comes with
// it. Goodbye: the server ends the connection, and says why. The geometry is the Welcome's.
struct nvmeof_ring_answer {
  uint32_t magic;
  uint32_t version;
  uint32_t message;  // enum nvmeof_ring_message
  uint32_t error;    // an errno value
  uint64_t size_bytes;
  uint32_t block_bytes;
  uint32_t transfer_max;  // bytes of one NVMe command; the server splits what is longer
  uint32_t flags;         // enum nvmeof_ring_flags
  uint32_t reserved;
  char reason[NVMEOF_RING_REASON_BYTES];  // terminated
};

enum nvmeof_ring_opcode {
  NVMEOF_RING_READ = 0,
  NVMEOF_RING_WRITE = 1,
  NVMEOF_RING_FLUSH = 2,
  NVMEOF_RING_ZERO = 3,
  NVMEOF_RING_TRIM = 4,
  NVMEOF_RING_OPCODES = 5,
};

enum nvmeof_ring_entry_flags { NVMEOF_RING_FUA = 1 };  // Write and Zero

// As four words: the server reads each exactly once.
struct nvmeof_ring_entry {
  uint8_t opcode;
  uint8_t flags;
  uint16_t reserved;  // 0
  uint32_t length;    // bytes
  uint64_t offset;    // bytes into the namespace
  uint64_t data;      // bytes into the data area; Read and Write
  uint64_t user_data;
};

enum nvmeof_ring_end {
  NVMEOF_RING_OK = 0,
  NVMEOF_RING_FAILED = 1,        // `status` is NVMe's: SCT << 8 | SC
  NVMEOF_RING_DISCONNECTED = 2,  // the controller is gone
  NVMEOF_RING_INVALID = 3,       // the entry made no sense: `status` is an errno value
  NVMEOF_RING_TIMED_OUT = 4,     // the controller did not answer in time
};

struct nvmeof_ring_completion {
  uint64_t user_data;
  uint16_t status;
  uint8_t end;  // enum nvmeof_ring_end
  uint8_t reserved[5];
};

// The page of words. Each word has a cache line of its own and one writer, but for `*_sleeping`,
// which the other end takes from 1 to 0 when it rings.
struct nvmeof_ring_words {
  uint32_t submission_tail;  // the client's: entries filled so far, modulo 2^32
  uint8_t pad0[60];
  uint32_t completion_tail;  // the server's
  uint8_t pad1[60];
  uint32_t server_sleeping;
  uint8_t pad2[60];
  uint32_t client_sleeping;
  uint8_t pad3[60];
};

// Offsets in the shared memory.
struct nvmeof_ring_layout {
  uint64_t submissions;
  uint64_t completions;
  uint64_t data;
  uint64_t total;
};

static inline struct nvmeof_ring_layout nvmeof_ring_layout_of(uint32_t entries,
                                                              uint64_t data_bytes) {
  const uint64_t page = NVMEOF_RING_PAGE;
  struct nvmeof_ring_layout layout;
  layout.submissions = page;
  layout.completions = layout.submissions + entries * sizeof(struct nvmeof_ring_entry);
  layout.data = layout.completions + entries * sizeof(struct nvmeof_ring_completion);
  layout.data = (layout.data + page - 1) / page * page;
  layout.total = layout.data + data_bytes;
  return layout;
}

#ifdef __cplusplus
#define NVMEOF_RING_ASSERT static_assert
#else
#define NVMEOF_RING_ASSERT _Static_assert
#endif
NVMEOF_RING_ASSERT(sizeof(struct nvmeof_ring_hello) == 24, "hello");
NVMEOF_RING_ASSERT(sizeof(struct nvmeof_ring_answer) == 240, "answer");
NVMEOF_RING_ASSERT(sizeof(struct nvmeof_ring_entry) == 32, "entry");
NVMEOF_RING_ASSERT(sizeof(struct nvmeof_ring_completion) == 16, "completion");
NVMEOF_RING_ASSERT(offsetof(struct nvmeof_ring_words, completion_tail) == 64, "a line each");
NVMEOF_RING_ASSERT(offsetof(struct nvmeof_ring_words, client_sleeping) == 192, "a line each");
NVMEOF_RING_ASSERT(sizeof(struct nvmeof_ring_words) <= NVMEOF_RING_PAGE, "one page");
