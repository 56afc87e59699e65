// The RDMA interface in verbs' own words. Two providers implement it: soft (RoCEv2 in user space
// over UDP 4791) and verbs (libibverbs + librdmacm). Code above this line never asks which one it
// has: it reads Capabilities.
//
// Threads: Device::open and close from any thread that is no reactor. Everything else on the thread
// of the reactor that owns the object (CompletionQueue, QueuePair, SharedReceiveQueue), or on any
// reactor's thread where it says so. No call blocks, and after set-up none allocates.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rdma/fault_rules.h"
#include "reactor/lease.h"
#include "reactor/reactor.h"
#include "reactor/result.h"

namespace nvmeof::rdma {

enum class State : uint8_t { Reset, Init, Rtr, Rts, Sqd, Sqe, Err };
const char* to_string(State state);

enum class Opcode : uint8_t {
  Send,
  SendWithImm,
  SendWithInvalidate,
  RdmaWrite,
  RdmaWriteWithImm,
  RdmaRead,
  BindMemoryWindow,  // gives MemoryWindow a new rkey over part of a MemoryRegion; no packet
  LocalInvalidate,   // ends an rkey; no packet
  AtomicFetchAdd,    // of eight bytes, aligned; the value from before arrives in the SGE
  AtomicCompareSwap,
};

// The transport service of a queue pair.
//   Rc  reliable connection: every operation
//   Uc  unreliable connection: SEND and RDMA WRITE, lost without a word
//   Ud  unreliable datagram: SEND of one packet to whatever address handle the request names
enum class QpType : uint8_t { Rc, Uc, Ud };
const char* to_string(QpType type);

// Access rights of regions, windows and queue pairs (bit set). Remote writes and atomics need
// kLocalWrite on a region too.
enum Access : uint8_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
  kWindowBind = 16
};

enum SendFlags : uint8_t { kSignaled = 1, kSolicited = 2, kFence = 4, kInline = 8 };

// ibv_wc_status, same numbers.
enum class Status : uint8_t {
  Success = 0,
  LocalLengthError = 1,
  LocalQpOperationError = 2,
  LocalProtectionError = 4,
  FlushError = 5,
  MemoryWindowBindError = 6,
  BadResponseError = 7,
  LocalAccessError = 8,
  RemoteInvalidRequest = 9,
  RemoteAccessError = 10,
  RemoteOperationError = 11,
  RetryExceeded = 12,
  RnrRetryExceeded = 13,
  FatalError = 19,
  GeneralError = 21,
};
const char* to_string(Status status);

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};

class MemoryRegion;
class MemoryWindow;
class AddressHandle;

struct BindWork {
  MemoryWindow* window;
  MemoryRegion* region;
  uint64_t address;
  uint64_t length;
  uint32_t rkey;  // from MemoryWindow::next_rkey()
  uint8_t access;
};
struct AtomicWork {
  uint64_t compare_add;  // AtomicFetchAdd: what is added; AtomicCompareSwap: what must be there
  uint64_t swap;         // AtomicCompareSwap: what is put in its place
};
struct DatagramWork {
  const AddressHandle* address;  // lives until the completion
  uint32_t remote_qpn;
  uint32_t remote_qkey;
};

struct SendWorkRequest {
  uint64_t wr_id;
  Opcode opcode;
  uint8_t flags;         // SendFlags
  uint8_t num_sge;       // at most Capabilities::max_sge (max_read_sge for RdmaRead)
  const Sge* sg_list;    // read during post_send only (the array; the data it names must live until
                         // completion)
  uint32_t imm_or_rkey;  // SendWithImm, RdmaWriteWithImm: immediate; SendWithInvalidate,
                         // LocalInvalidate: rkey to end
  uint64_t remote_address;  // Rdma*, Atomic* (a multiple of 8)
  uint32_t rkey;            // Rdma*, Atomic*
  union {
    BindWork bind;          // BindMemoryWindow
    AtomicWork atomic;      // Atomic*
    DatagramWork datagram;  // Send and SendWithImm on a Ud queue pair
    // RdmaRead into memory of free registration: its data are placed only while this holds, else
    // the queue pair fails. Null: whenever.
    const reactor::Lease* lease;
  };
};

struct ReceiveWorkRequest {
  uint64_t wr_id;  // the highest bit is the provider's
  uint8_t num_sge;
  const Sge* sg_list;
};

// kWithGrh: a datagram, with kGrhBytes in front of its data.
enum WcFlags : uint8_t { kWithImm = 1, kWithInvalidate = 2, kWithGrh = 4 };

// What precedes the data of a datagram in its receive: the IPv6 header, or 20 undefined bytes and
// the IPv4 header (IBTA A17.4.5.2). Counted in byte_length.
inline constexpr uint32_t kGrhBytes = 40;

struct WorkCompletion {
  uint64_t wr_id;
  Status status;
  Opcode opcode;  // of a send; for a receive: Send, SendWithInvalidate, or RdmaWriteWithImm
  bool receive;   // true: of a receive queue
  uint8_t flags;  // WcFlags
  uint32_t byte_length;
  uint32_t imm_or_rkey;  // immediate, or the rkey that the peer invalidated
  uint32_t qp_num;       // local queue pair
  uint32_t source_qp;    // with kWithGrh: the sender's queue pair
  void* qp_context;      // QueuePairOptions::context
};

class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;  // deregisters
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;  // valid only with a remote access right
};

// Type 2: an rkey over part of a region, tied to one queue pair, that dies by invalidation (ours or
// the peer's).
class MemoryWindow {
 public:
  virtual ~MemoryWindow() = default;
  virtual uint32_t next_rkey() = 0;  // the rkey that the next bind must name; never repeats soon,
                                     // not guessable on soft
};

class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;
  // Any thread. The range stays valid and mapped until the region is destroyed.
  virtual Result<std::unique_ptr<MemoryRegion>> register_memory(void* address, size_t length,
                                                                uint8_t access) = 0;
  virtual Result<std::unique_ptr<MemoryWindow>> allocate_window() = 0;
};

// Where the datagrams of a Ud queue pair go: a peer's address.
class AddressHandle {
 public:
  virtual ~AddressHandle() = default;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual int poll(std::span<WorkCompletion> out) = 0;  // how many were written
  virtual bool
  arm() = 0;  // ask for a wake-up of the owning reactor; false when completions are waiting
};

class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  virtual Result<void> post_receive(std::span<const ReceiveWorkRequest> requests) = 0;
};

// What one queue pair sent and received, and why it sent again.
struct QueuePairCounters {
  uint64_t rx_packets = 0, tx_packets = 0;
  uint64_t acks_sent = 0, acks_received = 0;
  // Each time it went back to an earlier packet: nobody answered; the peer missed one, and said so,
  // or answered a later one; the peer had no receive.
  uint64_t retransmits_timeout = 0, retransmits_nak = 0, retransmits_implied = 0,
           retransmits_not_ready = 0;
};

class QueuePair {
 public:
  virtual ~QueuePair() =
      default;  // outstanding work requests are dropped silently; late packets find no one
  virtual uint32_t number() const = 0;
  virtual State state() const = 0;
  // 0, or the count of requests accepted before `error` (ENOMEM: queue full, EINVAL: malformed or
  // wrong state).
  virtual Result<void> post_send(std::span<const SendWorkRequest> requests) = 0;
  virtual Result<void> post_receive(
      std::span<const ReceiveWorkRequest> requests) = 0;  // without an SRQ
  virtual void to_error() = 0;                            // all work flushes with FlushError
  // Bytes and work requests that the peer has not acknowledged yet: what a multipath policy may
  // look at.
  virtual uint32_t outstanding_sends() const = 0;
  // Payload of one packet at most, bytes: data of that length and alignment is read from memory at
  // once. 0: nothing is known of it.
  virtual uint32_t packet_bytes() const { return 0; }
  // Sends a peer from which no acknowledgement is awaited a packet that it must acknowledge,
  // without a completion: if it is gone, the queue pair fails. False: not needed now, or not
  // offered.
  virtual bool probe() { return false; }
  // nullptr: the device does not tell. On the reactor's thread.
  virtual const QueuePairCounters* counters() const { return nullptr; }
};

struct QueuePairOptions {
  ProtectionDomain* pd = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* receive_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;  // may be null
  uint32_t max_send_wr = 0, max_receive_wr = 0;
  uint32_t max_send_sge = 1, max_receive_sge = 1;
  void* context = nullptr;
  QpType type = QpType::Rc;
};

// What two applications must know of each other to do without connection management, as
// ibv_rc_pingpong and perftest exchange it over TCP.
struct PathAttributes {
  sockaddr_storage peer{};       // Rc, Uc: the only address that is heard
  uint32_t destination_qpn = 0;  // Rc, Uc
  uint32_t send_psn = 0;         // of our first packet
  uint32_t receive_psn = 0;      // Rc, Uc: of the peer's
  uint32_t path_mtu = 0;         // Rc, Uc: bytes; 0: Capabilities::path_mtu
  uint32_t qkey = 0;             // Ud: what a datagram must bring to be received
  // Rc, as in ConnectionParameters
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint8_t retry_count = 7, rnr_retry_count = 7;
};

// What carries the packets. Discovery names it to hosts (TSAS, NVMe over RDMA 5.2).
enum class Fabric : uint8_t { RoceV2, InfiniBand, Iwarp };

struct Capabilities {
  Fabric fabric = Fabric::RoceV2;
  uint32_t max_sge = 1, max_read_sge = 1, max_inline = 0;
  uint32_t max_responder_resources = 0,
           max_initiator_depth = 0;  // READs outstanding per queue pair, in and out
  uint32_t max_cq_entries = 32767;   // of one completion queue
  // Without an SRQ a queue pair takes receives from its creation on, and has them before a peer can
  // send.
  bool send_with_invalidate = false, memory_windows = false, srq = false;
  bool inline_with_invalidate = true;  // SendWithInvalidate takes kInline
  bool atomics = false;                // Atomic* on Rc, kRemoteAtomic
  bool unconnected_setup = false;      // connect_path()
  bool uc = false, ud = false;         // queue pairs of these types; ud: create_address_handle()
  // A SEND that finds no receive is tried again. False on iWARP: it ends the connection.
  bool receiver_not_ready = true;
  uint32_t path_mtu = 1024;        // bytes
  bool free_registration = false;  // registering memory pins nothing and costs nothing
  // Bytes that may be on their way to one reactor of this device without overflowing its socket
  // buffer: data of reads that an initiator has outstanding, READ responses. 0: the hardware has no
  // such limit.
  uint32_t receive_window_bytes = 0;
};

// ---- Connection management, rdma_cm style
// --------------------------------------------------------------------------

struct ConnectionParameters {
  uint8_t responder_resources = 0;  // inbound READs we serve
  uint8_t initiator_depth = 0;      // outbound READs we will have outstanding
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  std::span<const uint8_t> private_data;  // consumer's part: at most 56 bytes in a request, 196 in
                                          // a reply, 148 in a reject
};

enum class ConnectFailure : uint8_t {
  Unreachable,      // no answer to any request
  PortUnreachable,  // ICMP: no process holds the peer's UDP port 4791
  Rejected,         // reason and private data are given
  BadIcrc,          // packets came back, but with a wrong ICRC (a middle box rewrites headers?)
  MtuTooLarge,      // EMSGSIZE from our own kernel
  Cancelled,
  NoResources,
  AddressInUse,
};

using ConnectionId = uint64_t;  // never reused in a process

struct ConnectRequest {
  ConnectionId id;
  uint32_t listener;  // as listen() returned
  sockaddr_storage peer, local;
  uint16_t peer_port;                     // from the RDMA-CM header
  uint8_t responder_resources;            // our limit of outbound READs: the peer serves this many
  uint8_t initiator_depth;                // inbound READs the peer wants
  std::span<const uint8_t> private_data;  // valid during the call only
};

struct ConnectResponse {
  uint8_t responder_resources, initiator_depth;
  std::span<const uint8_t> private_data;
};

struct ConnectFailed {
  ConnectFailure failure;
  uint16_t reason;  // IB CM reject reason, with Rejected
  std::span<const uint8_t> private_data;
  std::string message;  // one sentence for a person
};

// Called on the thread of the reactor of the bound queue pair; on_connect_request on the device's
// first reactor.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;
  virtual void on_connect_request(const ConnectRequest& request) = 0;
  virtual void on_connect_response(ConnectionId id,
                                   const ConnectResponse& response) = 0;  // active side, QP is RTS
  virtual void on_connect_failed(ConnectionId id, const ConnectFailed& failed) = 0;
  virtual void on_established(ConnectionId id) = 0;  // passive side: RTU or first data
  // Once for every established connection, whoever ended it: peer's DREQ, ours answered, QP error,
  // device gone.
  virtual void on_disconnected(ConnectionId id, const std::string& reason) = 0;
};

struct DeviceOptions {
  std::string provider = "auto";           // auto | soft | verbs
  sockaddr_storage address{};              // local address; one process per address for soft
  uint32_t path_mtu = 0;                   // 0: from the interface's MTU
  uint32_t socket_buffer_bytes = 4 << 20;  // asked for; what was granted is in counters
  std::string pcap_path;                   // empty: no capture
  bool full_icrc = false;                  // soft: check IPv4 with its header (CAP_NET_RAW)
  bool fault_injection = false;            // soft: set_faults() may be called
  uint32_t local_ack_timeout = 0;          // 4.096 us * 2^n; 0: the provider's choice
  uint32_t connect_timeout_ms = 5000;      // of the whole CM exchange on the active side
};

// How the values of several devices become one: events and objects add up; of what limits a device,
// the smallest is shown.
enum class CounterKind : uint8_t { Sum, Smallest };

struct CounterValue {
  const char* name;
  uint64_t value;
  CounterKind kind = CounterKind::Sum;
};

class Device {
 public:
  virtual ~Device() = default;  // closes; every object made from it is gone before
  virtual const Capabilities& capabilities() const = 0;
  virtual sockaddr_storage address() const = 0;
  virtual std::string name() const { return {}; }  // of the RDMA device; empty: there is none

  virtual Result<std::unique_ptr<ProtectionDomain>> allocate_pd() = 0;  // any thread
  // On the reactor's thread that will own them (must be one of those given to open).
  virtual Result<std::unique_ptr<CompletionQueue>> create_cq(uint32_t depth) = 0;
  virtual Result<std::unique_ptr<SharedReceiveQueue>> create_srq(ProtectionDomain* pd,
                                                                 uint32_t max_wr,
                                                                 uint32_t max_sge) = 0;
  virtual Result<std::unique_ptr<QueuePair>> create_qp(const QueuePairOptions& options) = 0;

  // Takes a queue pair in RESET through INIT, RTR and RTS with what its user learned of the peer by
  // other means than connection management. On the queue pair's reactor. What a provider without it
  // says in its Capabilities (`unconnected_setup`, `ud`) it answers with ENOTSUP.
  virtual Result<void> connect_path(QueuePair* qp, const PathAttributes& attributes);
  virtual Result<std::unique_ptr<AddressHandle>> create_address_handle(
      ProtectionDomain* pd, const sockaddr_storage& peer);  // on the reactor that will send to it

  // Connection management: any reactor's thread of this device. accept/connect take a queue pair in
  // RESET made on the calling reactor; the provider moves it through INIT, RTR and RTS. It must
  // outlive the connection's last event.
  virtual Result<uint32_t> listen(uint16_t port, ConnectionHandler* handler) = 0;
  virtual void unlisten(uint32_t listener) = 0;
  virtual Result<ConnectionId> connect(const sockaddr_storage& peer, uint16_t port, QueuePair* qp,
                                       const ConnectionParameters& parameters,
                                       ConnectionHandler* handler) = 0;
  virtual Result<void> accept(ConnectionId id, QueuePair* qp,
                              const ConnectionParameters& parameters) = 0;
  virtual void reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data) = 0;
  // Graceful: DREQ. Both queue pairs go to ERR and flush. on_disconnected follows, also when the
  // peer is dead.
  virtual void disconnect(ConnectionId id) = 0;
  // Forget the connection without any further event (a connect that was given up, a queue pair
  // about to be destroyed).
  virtual void abandon(ConnectionId id) = 0;

  virtual std::vector<CounterValue> counters() const = 0;  // any thread
  // Faults that its packets meet from now on, instead of those before; without rules none. Waits
  // for a loop iteration of each reactor, so not from a reactor. EPERM unless the device was opened
  // for it, ENOTSUP where the provider cannot.
  virtual Result<void> set_faults(const FaultRules& rules);

  // Of them, what one reactor counted: those that say where its time goes. Empty: the device does
  // not tell reactors apart.
  virtual std::vector<CounterValue> counters_of(unsigned reactor) const {
    (void)reactor;
    return {};
  }
};

// Opens the address with the provider asked for. `reactors` outlive the device; [0] runs connection
// management.
Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options,
                                            std::span<reactor::Reactor* const> reactors);

}  // namespace nvmeof::rdma
