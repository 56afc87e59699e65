// Names of connections, unique in the process whichever provider made them. Any thread.
#pragma once
#include "rdma/provider.h"

namespace nvmeof::rdma {

ConnectionId new_connection_id();

}  // namespace nvmeof::rdma
