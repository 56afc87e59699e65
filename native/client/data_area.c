// The data area's allocator: first fit over a list of stretches. For buffers that live long; not
// for the I/O path.
#include <stdlib.h>

#include "client_internal.h"

int nvmeof_area_begin(struct nvmeof_client* client) {
  struct nvmeof_stretch* all = calloc(1, sizeof *all);
  if (!all) return -1;
  all->bytes = client->data_bytes;
  client->stretches = all;
  return 0;
}

void nvmeof_area_end(struct nvmeof_client* client) {
  struct nvmeof_stretch* stretch = client->stretches;
  while (stretch) {
    struct nvmeof_stretch* const next = stretch->next;
    free(stretch);
    stretch = next;
  }
  client->stretches = NULL;
}

void* nvmeof_alloc(struct nvmeof_client* client, size_t bytes) {
  const uint64_t page = NVMEOF_RING_PAGE;
  if (bytes == 0 || bytes > client->data_bytes) return NULL;
  const uint64_t wanted = (bytes + page - 1) / page * page;
  for (struct nvmeof_stretch* at = client->stretches; at; at = at->next) {
    if (at->used || at->bytes < wanted) continue;
    if (at->bytes > wanted) {
      struct nvmeof_stretch* rest = calloc(1, sizeof *rest);
      if (!rest) return NULL;
      rest->offset = at->offset + wanted;
      rest->bytes = at->bytes - wanted;
      rest->next = at->next;
      at->next = rest;
      at->bytes = wanted;
    }
    at->used = true;
    return client->data + at->offset;
  }
  return NULL;
}

static void join_next(struct nvmeof_stretch* at) {
  struct nvmeof_stretch* const next = at->next;
  at->bytes += next->bytes;
  at->next = next->next;
  free(next);
}

void nvmeof_free(struct nvmeof_client* client, void* data) {
  if (!data) return;
  const uint64_t offset = (uint64_t)((uint8_t*)data - client->data);
  struct nvmeof_stretch* before = NULL;
  for (struct nvmeof_stretch* at = client->stretches; at; before = at, at = at->next) {
    if (at->offset != offset || !at->used) continue;
    at->used = false;
    if (at->next && !at->next->used) join_next(at);
    if (before && !before->used) join_next(before);
    return;
  }
}
