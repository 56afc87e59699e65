// Names of states, services and completion statuses, for messages; what a device answers that lacks
// an optional operation. Pure, any thread.
#include "rdma/provider.h"

namespace nvmeof::rdma {

const char* to_string(State state) {
  switch (state) {
    case State::Reset:
      return "RESET";
    case State::Init:
      return "INIT";
    case State::Rtr:
      return "RTR";
    case State::Rts:
      return "RTS";
    case State::Sqd:
      return "SQD";
    case State::Sqe:
      return "SQE";
    case State::Err:
      return "ERR";
  }
  return "unknown state";
}

const char* to_string(QpType type) {
  switch (type) {
    case QpType::Rc:
      return "RC";
    case QpType::Uc:
      return "UC";
    case QpType::Ud:
      return "UD";
  }
  return "unknown service";
}

const char* to_string(Status status) {
  switch (status) {
    case Status::Success:
      return "success";
    case Status::LocalLengthError:
      return "local length error";
    case Status::LocalQpOperationError:
      return "local queue pair operation error";
    case Status::LocalProtectionError:
      return "local protection error";
    case Status::FlushError:
      return "work request flushed";
    case Status::MemoryWindowBindError:
      return "memory window bind error";
    case Status::BadResponseError:
      return "bad response";
    case Status::LocalAccessError:
      return "local access error";
    case Status::RemoteInvalidRequest:
      return "remote invalid request";
    case Status::RemoteAccessError:
      return "remote access error";
    case Status::RemoteOperationError:
      return "remote operation error";
    case Status::RetryExceeded:
      return "transport retries exceeded";
    case Status::RnrRetryExceeded:
      return "receiver-not-ready retries exceeded";
    case Status::FatalError:
      return "fatal error";
    case Status::GeneralError:
      return "general error";
  }
  return "unknown status";
}

Result<void> Device::set_faults(const FaultRules&) {
  return Error{ENOTSUP, "Faults are injected by the soft provider alone."};
}

Result<void> Device::connect_path(QueuePair*, const PathAttributes&) {
  return Error{ENOTSUP, "This device joins queue pairs by connection management only."};
}

Result<std::unique_ptr<AddressHandle>> Device::create_address_handle(ProtectionDomain*,
                                                                     const sockaddr_storage&) {
  return Error{ENOTSUP, "This device has no address handles."};
}

}  // namespace nvmeof::rdma
