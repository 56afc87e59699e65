// Connecting to a server of nvmeof_client.h, and leaving it.
#include "nvmeof_client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client_internal.h"

#define CONNECT_SECONDS 5

void nvmeof_break(struct nvmeof_client* client, const char* why) {
  if (client->broken) return;
  client->broken = true;
  snprintf(client->why, sizeof client->why, "%s", why);
}

static bool is_answer(const struct nvmeof_ring_answer* answer, ssize_t bytes, uint32_t message) {
  return bytes == (ssize_t)sizeof *answer && answer->magic == NVMEOF_RING_MAGIC &&
         answer->message == message;
}

void nvmeof_look_at_socket(struct nvmeof_client* client) {
  for (;;) {
    struct nvmeof_ring_answer message;
    const ssize_t bytes = recv(client->socket, &message, sizeof message, MSG_DONTWAIT);
    if (bytes == 1) continue;  // a doorbell
    // A reset is reported once, before what was sent ahead of it.
    if (bytes < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (bytes < 0 && errno == EAGAIN) return;
    if (is_answer(&message, bytes, NVMEOF_RING_GOODBYE)) {
      message.reason[sizeof message.reason - 1] = 0;
      nvmeof_break(client, message.reason);
    } else {
      nvmeof_break(client, "the process that attached the namespace is gone");
    }
    return;
  }
}

// Writes the sentence and gives `error` back.
__attribute__((format(printf, 3, 4))) static int refuse(char* why, int error, const char* format,
                                                        ...) {
  if (why) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, NVMEOF_WHY_BYTES, format, arguments);
    va_end(arguments);
  }
  return error;
}

static int open_socket(const char* path, char* why) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path)
    return refuse(why, -ENAMETOOLONG, "%s: the path of a socket has at most %zu characters", path,
                  sizeof address.sun_path - 1);
  memcpy(address.sun_path, path, strlen(path) + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return refuse(why, -errno, "no socket: %s", strerror(errno));
  const struct timeval limit = {.tv_sec = CONNECT_SECONDS};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (connect(fd, (const struct sockaddr*)&address, sizeof address) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EPROTOTYPE)
    return refuse(why, -error, "%s is another kind of socket; give the one of attach --socket",
                  path);
  return refuse(why, -error, "%s: %s; does `nvmeof attach ... --socket %s` run?", path,
                strerror(error), path);
}

// The descriptor that came with the Welcome, or a negative errno.
static int greet(int fd, const struct nvmeof_client_options* options,
                 struct nvmeof_ring_answer* answer, char* why) {
  const struct nvmeof_ring_hello hello = {.magic = NVMEOF_RING_MAGIC,
                                          .version = NVMEOF_RING_VERSION,
                                          .entries = options->entries,
                                          .data_bytes = options->data_bytes};
  // A server that refuses may have closed already; its answer is there all the same.
  const bool sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec part = {.iov_base = answer, .iov_len = sizeof *answer};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0 && errno == ECONNRESET) bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (bytes == 0 || (bytes < 0 && !sent))
    return refuse(why, -EPIPE, "the server closed the connection");
  if (bytes < 0 && errno == EAGAIN)
    return refuse(why, -ETIMEDOUT, "the server did not answer within %d s", CONNECT_SECONDS);
  int memory = -1;
  const struct cmsghdr* const passed = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (passed && passed->cmsg_level == SOL_SOCKET && passed->cmsg_type == SCM_RIGHTS &&
      passed->cmsg_len == CMSG_LEN(sizeof memory))
    memcpy(&memory, CMSG_DATA(passed), sizeof memory);
  if (is_answer(answer, bytes, NVMEOF_RING_WELCOME)) {
    answer->reason[sizeof answer->reason - 1] = 0;
    if (answer->error == 0 && answer->version == NVMEOF_RING_VERSION && memory >= 0) return memory;
  } else {
    *answer = (struct nvmeof_ring_answer){.error = EPROTO};
  }
  if (memory >= 0) close(memory);
  if (answer->error == 0) answer->error = EPROTO;
  return refuse(why, answer->error < 4096 ? -(int)answer->error : -EPROTO, "%s",
                answer->reason[0] ? answer->reason : "the server speaks another protocol");
}

static int map_memory(struct nvmeof_client* client, int memory, char* why) {
  struct stat status;
  if (fstat(memory, &status) != 0 || (uint64_t)status.st_size < client->layout.total)
    return refuse(why, -EPROTO, "the server's shared memory is too small");
  void* const mapped =
      mmap(NULL, client->layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED)
    return refuse(why, -errno, "the shared memory cannot be mapped: %s", strerror(errno));
  nvmeof_use_memory(client, mapped, client->entries, client->data_bytes);
  return 0;
}

static struct nvmeof_client_options complete_options(const struct nvmeof_client_options* given) {
  struct nvmeof_client_options options = given ? *given : (struct nvmeof_client_options){0};
  const uint32_t wanted = options.entries ? options.entries : 128;
  options.entries = 1;
  while (options.entries < wanted && options.entries < NVMEOF_RING_ENTRIES_MAX)
    options.entries *= 2;
  if (options.entries < wanted) options.entries = wanted;  // for the server to refuse
  if (options.data_bytes == 0) options.data_bytes = 16u << 20;
  const uint64_t page = NVMEOF_RING_PAGE;
  if (options.data_bytes <= NVMEOF_RING_DATA_MAX)
    options.data_bytes = (options.data_bytes + page - 1) / page * page;
  return options;
}

int nvmeof_connect(const char* path, const struct nvmeof_client_options* given,
                   struct nvmeof_client** result, char* why) {
  const struct nvmeof_client_options options = complete_options(given);
  struct nvmeof_client* client = calloc(1, sizeof *client);
  if (!client) return refuse(why, -ENOMEM, "out of memory");
  client->entries = options.entries;
  client->data_bytes = options.data_bytes;
  client->spin_us = options.spin_us;
  client->layout = nvmeof_ring_layout_of(options.entries, options.data_bytes);
  client->socket = open_socket(path, why);
  int error = client->socket < 0 ? client->socket : 0;
  if (error == 0) {
    struct nvmeof_ring_answer answer;
    const int memory = greet(client->socket, &options, &answer, why);
    error = memory < 0 ? memory : map_memory(client, memory, why);
    if (memory >= 0) close(memory);
    client->geometry = (struct nvmeof_geometry){
        .size_bytes = answer.size_bytes,
        .block_bytes = answer.block_bytes,
        .transfer_max = answer.transfer_max,
        .read_only = answer.flags & NVMEOF_RING_READ_ONLY,
        .write_cache = answer.flags & NVMEOF_RING_WRITE_CACHE,
        .can_trim = answer.flags & NVMEOF_RING_DISCARD,
        .can_write_zeroes = answer.flags & NVMEOF_RING_WRITE_ZEROES,
    };
  }
  if (error == 0 && nvmeof_area_begin(client) != 0) error = refuse(why, -ENOMEM, "out of memory");
  if (error != 0) {
    nvmeof_close(client);
    return error;
  }
  *result = client;
  return 0;
}

void nvmeof_close(struct nvmeof_client* client) {
  if (!client) return;
  nvmeof_area_end(client);
  if (client->memory) munmap(client->memory, client->layout.total);
  if (client->socket >= 0) close(client->socket);
  free(client);
}

const struct nvmeof_geometry* nvmeof_get_geometry(const struct nvmeof_client* client) {
  return &client->geometry;
}

uint32_t nvmeof_entries(const struct nvmeof_client* client) {
  return client->entries;
}

const char* nvmeof_why(const struct nvmeof_client* client) {
  return client->why;
}
