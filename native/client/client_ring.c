// The rings as the client uses them: queue, submit, poll, wait. See ring_layout.h for the rules.
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "client_internal.h"

// How many polls that find nothing go by between two looks at the socket. Only there the end of a
// server shows that died without a word.
#define LOOK_EVERY 4096u
// Of a spin: from here on whoever else wants the processor gets it, the server perhaps.
#define YIELD_AFTER_NS 10000u

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void nvmeof_use_memory(struct nvmeof_client* client, void* memory, uint32_t entries,
                       uint64_t data_bytes) {
  client->layout = nvmeof_ring_layout_of(entries, data_bytes);
  client->memory = memory;
  client->words = memory;
  client->submissions = (void*)(client->memory + client->layout.submissions);
  client->completions = (const void*)(client->memory + client->layout.completions);
  client->data = client->memory + client->layout.data;
  client->data_bytes = data_bytes;
  client->entries = entries;
}

uint32_t nvmeof_outstanding(const struct nvmeof_client* client) {
  return client->queued - client->taken;
}

static const struct {
  uint8_t opcode;
  bool has_data;
} kOperations[] = {
    [NVMEOF_READ] = {NVMEOF_RING_READ, true},    [NVMEOF_WRITE] = {NVMEOF_RING_WRITE, true},
    [NVMEOF_FLUSH] = {NVMEOF_RING_FLUSH, false}, [NVMEOF_WRITE_ZEROES] = {NVMEOF_RING_ZERO, false},
    [NVMEOF_TRIM] = {NVMEOF_RING_TRIM, false},
};

int nvmeof_queue(struct nvmeof_client* client, const struct nvmeof_io* io) {
  if (client->broken) return -EPIPE;
  if (nvmeof_outstanding(client) == client->entries) return -EAGAIN;
  if ((unsigned)io->operation >= sizeof kOperations / sizeof kOperations[0]) return -EINVAL;
  struct nvmeof_ring_entry entry = {.opcode = kOperations[io->operation].opcode,
                                    .flags = io->fua ? NVMEOF_RING_FUA : 0,
                                    .length = io->length,
                                    .offset = io->offset,
                                    .user_data = io->user_data};
  if (kOperations[io->operation].has_data) {
    // Below the area it wraps to a large number.
    entry.data = (uint64_t)((uintptr_t)io->data - (uintptr_t)client->data);
    if (io->length > client->data_bytes || entry.data > client->data_bytes - io->length)
      return -EINVAL;
  }
  // In words, as the server reads them.
  uint64_t words[sizeof entry / 8];
  memcpy(words, &entry, sizeof entry);
  uint64_t* slot = (uint64_t*)&client->submissions[client->queued & (client->entries - 1)];
  for (unsigned i = 0; i < sizeof entry / 8; i++)
    __atomic_store_n(&slot[i], words[i], __ATOMIC_RELAXED);
  client->queued++;
  return 0;
}

static void ring_doorbell(struct nvmeof_client* client) {
  const char bell = 0;
  // A full socket holds bells that were not heard yet.
  if (send(client->socket, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
    nvmeof_look_at_socket(client);
}

void nvmeof_submit(struct nvmeof_client* client) {
  if (client->submitted == client->queued) return;
  client->submitted = client->queued;
  struct nvmeof_ring_words* const words = client->words;
  __atomic_store_n(&words->submission_tail, client->queued, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&words->server_sleeping, __ATOMIC_SEQ_CST) != 0 &&
      __atomic_exchange_n(&words->server_sleeping, 0, __ATOMIC_SEQ_CST) != 0)
    ring_doorbell(client);
}

static int error_of(const struct nvmeof_ring_completion* completion) {
  switch (completion->end) {
    case NVMEOF_RING_OK:
      return 0;
    case NVMEOF_RING_DISCONNECTED:
      return ENOTCONN;
    case NVMEOF_RING_TIMED_OUT:
      return ETIMEDOUT;
    case NVMEOF_RING_INVALID:
      return completion->status;
    default:
      return EIO;
  }
}

int nvmeof_poll(struct nvmeof_client* client, struct nvmeof_completion* done, unsigned max) {
  const uint32_t tail = __atomic_load_n(&client->words->completion_tail, __ATOMIC_ACQUIRE);
  uint32_t count = tail - client->taken;
  if (count == 0) {
    if (++client->empty_polls % LOOK_EVERY == 0) nvmeof_look_at_socket(client);
    return client->broken ? -EPIPE : 0;
  }
  client->empty_polls = 0;
  if (count > nvmeof_outstanding(client)) {
    nvmeof_break(client, "the server completed more than was submitted");
    return -EPIPE;
  }
  if (count > max) count = max;
  for (uint32_t i = 0; i < count; i++) {
    const struct nvmeof_ring_completion completion =
        client->completions[client->taken++ & (client->entries - 1)];
    done[i].user_data = completion.user_data;
    done[i].error = error_of(&completion);
    done[i].status = completion.end == NVMEOF_RING_FAILED ? completion.status : 0;
  }
  return (int)count;
}

static void sleep_until(struct nvmeof_client* client, uint64_t now, uint64_t deadline) {
  struct nvmeof_ring_words* const words = client->words;
  __atomic_store_n(&words->client_sleeping, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&words->completion_tail, __ATOMIC_SEQ_CST) == client->taken) {
    struct pollfd fd = {.fd = client->socket, .events = POLLIN};
    const uint64_t left = deadline - now;
    const struct timespec limit = {.tv_sec = (time_t)(left / 1000000000u),
                                   .tv_nsec = (long)(left % 1000000000u)};
    if (ppoll(&fd, 1, deadline == UINT64_MAX ? NULL : &limit, NULL) > 0)
      nvmeof_look_at_socket(client);
  }
  __atomic_store_n(&words->client_sleeping, 0, __ATOMIC_SEQ_CST);
}

int nvmeof_wait(struct nvmeof_client* client, struct nvmeof_completion* done, unsigned min,
                unsigned max, const struct timespec* timeout) {
  if (min > max) min = max;
  if (min > nvmeof_outstanding(client)) min = nvmeof_outstanding(client);
  int got = nvmeof_poll(client, done, max);
  if (got < 0 || (unsigned)got >= min) return got;
  uint64_t now = now_ns();
  const uint64_t yield_from = now + YIELD_AFTER_NS;
  const uint64_t spin_end = now + client->spin_us * UINT64_C(1000);
  const uint64_t deadline =
      timeout ? now + (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec
              : UINT64_MAX;
  while ((unsigned)got < min && now < deadline) {
    if (now >= spin_end) {
      sleep_until(client, now, deadline);
    } else if (now >= yield_from) {
      sched_yield();
    } else {
      for (int i = 0; i < 32; i++) pause_cpu();
    }
    const int more = nvmeof_poll(client, done + got, max - (unsigned)got);
    if (more < 0) return got > 0 ? got : more;
    got += more;
    now = now_ns();
  }
  return got;
}
