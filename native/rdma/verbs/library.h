// libibverbs and librdmacm as a table of functions, filled at run time: one build runs with and
// without them. What verbs.h defines inline (posting, polling, windows) goes through the context's
// own operations and needs no entry. Tests fill the table with functions of their own. Any thread.
#pragma once
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "reactor/result.h"

namespace nvmeof::rdma::verbs {

// Entries have no prefix: some of the names are macros in verbs.h.
#define NVMEOF_IBVERBS(X)                           \
  X(fork_init, ibv_fork_init)                       \
  X(get_device_list, ibv_get_device_list)           \
  X(free_device_list, ibv_free_device_list)         \
  X(get_device_name, ibv_get_device_name)           \
  X(open_device, ibv_open_device)                   \
  X(close_device, ibv_close_device)                 \
  X(query_device, ibv_query_device)                 \
  X(query_port_compat, ibv_query_port)              \
  X(query_gid_ex, _ibv_query_gid_ex)                \
  X(get_async_event, ibv_get_async_event)           \
  X(ack_async_event, ibv_ack_async_event)           \
  X(alloc_pd, ibv_alloc_pd)                         \
  X(dealloc_pd, ibv_dealloc_pd)                     \
  X(reg_mr, ibv_reg_mr)                             \
  X(dereg_mr, ibv_dereg_mr)                         \
  X(create_comp_channel, ibv_create_comp_channel)   \
  X(destroy_comp_channel, ibv_destroy_comp_channel) \
  X(create_cq, ibv_create_cq)                       \
  X(destroy_cq, ibv_destroy_cq)                     \
  X(get_cq_event, ibv_get_cq_event)                 \
  X(ack_cq_events, ibv_ack_cq_events)               \
  X(create_srq, ibv_create_srq)                     \
  X(destroy_srq, ibv_destroy_srq)                   \
  X(create_qp, ibv_create_qp)                       \
  X(modify_qp, ibv_modify_qp)                       \
  X(destroy_qp, ibv_destroy_qp)

#define NVMEOF_RDMACM(X)                               \
  X(create_event_channel, rdma_create_event_channel)   \
  X(destroy_event_channel, rdma_destroy_event_channel) \
  X(create_id, rdma_create_id)                         \
  X(destroy_id, rdma_destroy_id)                       \
  X(bind_addr, rdma_bind_addr)                         \
  X(resolve_addr, rdma_resolve_addr)                   \
  X(resolve_route, rdma_resolve_route)                 \
  X(connect, rdma_connect)                             \
  X(listen, rdma_listen)                               \
  X(accept, rdma_accept)                               \
  X(reject, rdma_reject)                               \
  X(establish, rdma_establish)                         \
  X(disconnect, rdma_disconnect)                       \
  X(notify, rdma_notify)                               \
  X(init_qp_attr, rdma_init_qp_attr)                   \
  X(set_option, rdma_set_option)                       \
  X(get_cm_event, rdma_get_cm_event)                   \
  X(ack_cm_event, rdma_ack_cm_event)

struct Library {
#define NVMEOF_FIELD(field, symbol) decltype(&::symbol) field = nullptr;
  NVMEOF_IBVERBS(NVMEOF_FIELD)
  NVMEOF_RDMACM(NVMEOF_FIELD)
#undef NVMEOF_FIELD

  // 0 or an errno value. The exported function writes the members up to link_layer; the rest of
  // `attributes` stays as it was.
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const {
    return query_port_compat(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
  }
};

// The libraries of this machine, loaded once and kept. ENOTSUP when they are not installed or too
// old; the message says what to install.
Result<const Library*> load_library();

}  // namespace nvmeof::rdma::verbs
