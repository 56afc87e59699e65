// fio's engine for attached namespaces: --ioengine=external:/path/nvmeof-fio.so. Each job, thread
// or process, has a connection of its own. fio's buffers are taken from the shared data area, so
// nothing is copied on the way. Built against the sources of the installed fio by
// tools/fio/build-engine.sh; the option names and hooks are fio's.
#include "fio.h"
#include "optgroup.h"

#include "nvmeof_client.h"

struct engine_options {
  void* pad;  // fio takes an offset of 0 for none
  char* socket;
  int spin_us;
};

// A job that looks for completions where others need its processor to bring them waits for itself.
enum { BUSY_THREADS = 3, SPIN_US = 50 };

static struct fio_option options[] = {
    {
        .name = "nvmeof_socket",
        .lname = "socket of nvmeof attach",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct engine_options, socket),
        .help = "Path given to nvmeof attach --socket (default: filename)",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "nvmeof_spin",
        .lname = "microseconds to look before sleeping",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct engine_options, spin_us),
        .def = "-1",
        .help = "How long to look for completions before sleeping (us); -1: 50, or 0 where the job,"
                " attach and the target cannot have a processor each",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

struct engine {
  struct nvmeof_client* client;
  struct nvmeof_completion* done;  // of the last getevents; iodepth of them
  bool refused;                    // why was said; fio goes on after a failed iomem_alloc
  bool said;                       // that the connection is lost
};

static const char* socket_of(struct thread_data* td, const struct fio_file* file) {
  const struct engine_options* chosen = td->eo;
  return chosen->socket ? chosen->socket : file->file_name;
}

static int fail(struct thread_data* td, int error, const char* why) {
  log_err("nvmeof: %s\n", why);
  td_verror(td, error, "nvmeof");
  return 1;
}

// What the namespace cannot do is said before the first I/O.
static int check_job(struct thread_data* td, const struct nvmeof_geometry* geometry) {
  char why[NVMEOF_WHY_BYTES];
  for (int direction = 0; direction < DDIR_RWDIR_CNT; direction++) {
    const unsigned long long least = td->o.min_bs[direction], most = td->o.max_bs[direction];
    if (least % geometry->block_bytes != 0) {
      snprintf(why, sizeof why, "bs=%llu is no multiple of the namespace's blocks of %u bytes",
               least, geometry->block_bytes);
      return fail(td, EINVAL, why);
    }
    if (most > UINT32_MAX) return fail(td, EINVAL, "bs must be less than 4 GiB");
  }
  if (geometry->read_only && (td_write(td) || td_trim(td)))
    return fail(td, EROFS, "the namespace is read-only");
  if (td_trim(td) && !geometry->can_trim)
    return fail(td, EOPNOTSUPP, "the namespace cannot deallocate blocks: no trim");
  return 0;
}

static uint32_t spin_of(const struct engine_options* chosen) {
  if (chosen->spin_us >= 0) return (uint32_t)chosen->spin_us;
  return sysconf(_SC_NPROCESSORS_ONLN) >= BUSY_THREADS ? SPIN_US : 0;
}

static int connect_job(struct thread_data* td, size_t data_bytes) {
  struct engine* engine = td->io_ops_data;
  const struct engine_options* chosen = td->eo;
  const struct nvmeof_client_options wanted = {
      .entries = td->o.iodepth,
      .data_bytes = data_bytes,
      .spin_us = spin_of(chosen),
  };
  char why[NVMEOF_WHY_BYTES];
  const int error = nvmeof_connect(socket_of(td, td->files[0]), &wanted, &engine->client, why);
  engine->refused =
      error ? fail(td, -error, why) : check_job(td, nvmeof_get_geometry(engine->client));
  return engine->refused;
}

static int engine_init(struct thread_data* td) {
  struct engine* engine = calloc(1, sizeof *engine);
  if (engine) engine->done = calloc(td->o.iodepth, sizeof *engine->done);
  if (!engine || !engine->done) {
    free(engine);
    return fail(td, ENOMEM, "out of memory");
  }
  td->io_ops_data = engine;
  return 0;
}

// Between init and post_init, when the size of all buffers is known.
static int engine_iomem_alloc(struct thread_data* td, size_t bytes) {
  struct engine* engine = td->io_ops_data;
  if (connect_job(td, bytes)) return 1;
  td->orig_buffer = nvmeof_alloc(engine->client, bytes);
  return td->orig_buffer == NULL;
}

static void engine_iomem_free(struct thread_data* td) {
  struct engine* engine = td->io_ops_data;
  if (engine && engine->client) nvmeof_free(engine->client, td->orig_buffer);
  td->orig_buffer = NULL;
}

// A job without data, such as trim alone, had no buffers to allocate.
static int engine_post_init(struct thread_data* td) {
  struct engine* engine = td->io_ops_data;
  if (!engine->client && !engine->refused) return connect_job(td, 4096);
  return engine->refused;
}

static void engine_cleanup(struct thread_data* td) {
  struct engine* engine = td->io_ops_data;
  if (!engine) return;
  nvmeof_close(engine->client);
  free(engine->done);
  free(engine);
  td->io_ops_data = NULL;
}

static bool operation_of(enum fio_ddir direction, enum nvmeof_operation* operation) {
  switch (direction) {
    case DDIR_READ:
      *operation = NVMEOF_READ;
      return true;
    case DDIR_WRITE:
      *operation = NVMEOF_WRITE;
      return true;
    case DDIR_TRIM:
      *operation = NVMEOF_TRIM;
      return true;
    case DDIR_SYNC:
    case DDIR_DATASYNC:
    case DDIR_SYNC_FILE_RANGE:
      *operation = NVMEOF_FLUSH;
      return true;
    default:
      return false;
  }
}

static enum fio_q_status engine_queue(struct thread_data* td, struct io_u* io_u) {
  struct engine* engine = td->io_ops_data;
  struct nvmeof_io io = {.user_data = (uintptr_t)io_u};
  fio_ro_check(td, io_u);
  int error = -EINVAL;
  if (operation_of(io_u->ddir, &io.operation)) {
    if (io.operation != NVMEOF_FLUSH) {
      io.offset = io_u->offset;
      io.length = (uint32_t)io_u->xfer_buflen;
      io.data = io_u->xfer_buf;
      io.fua = io.operation == NVMEOF_WRITE && td->o.sync_io != 0;
    }
    io_u->engine_data = NULL;
    error = nvmeof_queue(engine->client, &io);
  }
  if (error == 0) return FIO_Q_QUEUED;
  if (error == -EAGAIN) return FIO_Q_BUSY;
  io_u->error = error == -EPIPE ? EIO : -error;
  return FIO_Q_COMPLETED;
}

static int engine_commit(struct thread_data* td) {
  struct engine* engine = td->io_ops_data;
  nvmeof_submit(engine->client);
  return 0;
}

// Nothing more comes: what is in flight has failed.
static int end_all(struct thread_data* td, unsigned int max) {
  struct engine* engine = td->io_ops_data;
  struct io_u* io_u;
  int i;
  unsigned int count = 0;
  if (!engine->said) log_err("nvmeof: %s\n", nvmeof_why(engine->client));
  engine->said = true;
  io_u_qiter(&td->io_u_all, io_u, i) {
    if (count == max || !(io_u->flags & IO_U_F_FLIGHT)) continue;
    engine->done[count++] = (struct nvmeof_completion){.user_data = (uintptr_t)io_u, .error = EIO};
  }
  return (int)count;
}

static int engine_getevents(struct thread_data* td, unsigned int min, unsigned int max,
                            const struct timespec* timeout) {
  struct engine* engine = td->io_ops_data;
  if (max > td->o.iodepth) max = td->o.iodepth;
  const int count = nvmeof_wait(engine->client, engine->done, min, max, timeout);
  return count == -EPIPE ? end_all(td, max) : count;
}

static struct io_u* engine_event(struct thread_data* td, int event) {
  const struct engine* engine = td->io_ops_data;
  const struct nvmeof_completion* completion = &engine->done[event];
  struct io_u* io_u = (struct io_u*)(uintptr_t)completion->user_data;
  io_u->error = (unsigned int)completion->error;
  io_u->resid = completion->error ? io_u->xfer_buflen : 0;
  io_u->engine_data = (void*)(uintptr_t)completion->status;
  return io_u;
}

static char* engine_errdetails(struct io_u* io_u) {
  char* text = malloc(64);
  const unsigned int status = (unsigned int)(uintptr_t)io_u->engine_data;
  if (text)
    snprintf(text, 64, status ? "NVMe status type %u, code 0x%02x" : "the command did not run",
             status >> 8, status & 0xff);
  return text;
}

static int engine_get_file_size(struct thread_data* td, struct fio_file* file) {
  const struct nvmeof_client_options least = {.entries = 1, .data_bytes = 4096};
  struct nvmeof_client* client;
  char why[NVMEOF_WHY_BYTES];
  const int error = nvmeof_connect(socket_of(td, file), &least, &client, why);
  if (error) return fail(td, -error == ENOENT ? ENXIO : -error, why);  // fio forgives ENOENT
  file->real_file_size = nvmeof_get_geometry(client)->size_bytes;
  file->filetype = FIO_TYPE_BLOCK;
  fio_file_set_size_known(file);
  nvmeof_close(client);
  return 0;
}

// The file is a socket that the engine has connected to: nothing to open, drop or remove.
static int engine_nothing(struct thread_data* td, struct fio_file* file) {
  (void)td;
  (void)file;
  return 0;
}

// The one name that fio looks for.
__attribute__((visibility("default"))) struct ioengine_ops ioengine = {
    .name = "nvmeof",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
    .init = engine_init,
    .post_init = engine_post_init,
    .cleanup = engine_cleanup,
    .queue = engine_queue,
    .commit = engine_commit,
    .getevents = engine_getevents,
    .event = engine_event,
    .errdetails = engine_errdetails,
    .iomem_alloc = engine_iomem_alloc,
    .iomem_free = engine_iomem_free,
    .get_file_size = engine_get_file_size,
    .open_file = engine_nothing,
    .close_file = engine_nothing,
    .invalidate = engine_nothing,
    .unlink_file = engine_nothing,
    .options = options,
    .option_struct_size = sizeof(struct engine_options),
};
