// Where the datagrams of a UD queue pair go: a flow, held for as long as the handle lives. Made and
// destroyed on the reactor that sends to it.
#pragma once
#include "rdma/provider.h"
#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

class AddressHandle : public rdma::AddressHandle {
 public:
  explicit AddressHandle(const Flow* flow) : flow_(flow) {}
  AddressHandle(const AddressHandle&) = delete;
  AddressHandle& operator=(const AddressHandle&) = delete;
  const Flow* flow() const { return flow_; }

 private:
  const Flow* flow_;
};

}  // namespace nvmeof::rdma::soft
