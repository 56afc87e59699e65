// One NBD connection, from its greeting to its end: bytes of the socket become requests of the
// lane, and what those bring becomes replies. Its buffers are its own, so a client that is slow, or
// reads nothing, waits for itself alone: when its requests or buffers are all in use, no more is
// read from its socket. On the thread of its group's reactor; no allocation per request.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "attach/nbd/handshake.h"
#include "attach/nbd/request.h"
#include "nvmf/buffer_pool.h"
#include "rdma/arena.h"

namespace nvmeof::attach::nbd {

class Connection;
class ConnectionGroup;

// A request from its first byte to the last one of its reply.
struct Slot {
  IoRequest io;
  Connection* connection = nullptr;
  Request request;
  uint8_t* buffer = nullptr;  // of reads and writes
  ReplyHead head;
  uint32_t payload = 0;   // bytes of `buffer` behind the head
  bool flushing = false;  // a trim with FUA: its flush
  Slot* next = nullptr;   // free, or with a reply to send
};

class Connection {
 public:
  // Requests that one client may have in flight.
  static constexpr uint32_t kSlots = 128;

  Connection(ConnectionGroup* group, int fd);
  ~Connection();  // with nothing in flight
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The socket has something, or may have room.
  void on_readable();
  void on_writable() { blocked_ = false; }
  // Sends what is there to send, and goes on with what waited for that. True: nothing is left of
  // it, destroy it.
  bool service();
  void drop();

  int fd() const { return fd_; }
  uint32_t events() const { return events_; }
  // Of epoll, as they should be now.
  uint32_t wanted_events() const;
  void set_events(uint32_t events) { events_ = events; }

  bool marked = false;  // the group's: is in its list of work

 private:
  enum class State : uint8_t {
    Negotiating,
    Transmitting,
    Draining,  // the client said goodbye: what is in flight is answered still
    Dropped,   // no socket any more
  };

  void move(State to);
  void process();
  bool negotiate();
  Result<void> prepare();
  bool take_payload();
  bool begin_request();
  void receive_payload_of(Slot* slot);
  void submit(Slot* slot);
  void finish(Slot* slot, uint32_t failure);
  static void done(IoRequest* io, IoEnd end, uint16_t status);
  void on_done(Slot* slot, IoEnd end, uint16_t status);
  bool give_buffer(Slot* slot);
  void release(Slot* slot);

  bool flush();
  bool send(const iovec* parts, size_t count, size_t* sent);
  bool flush_replies();
  void sent_replies(size_t bytes);
  std::span<const uint8_t> unread() const { return {in_.data() + begin_, end_ - begin_}; }

  ConnectionGroup* const group_;
  int fd_;
  uint32_t events_ = 0;
  State state_ = State::Negotiating;
  bool stalled_ = false;  // what is unread waits for a slot, a buffer, or for answers to leave
  bool blocked_ = false;  // the socket takes no more
  Handshake handshake_;

  std::unique_ptr<rdma::Arena> arena_;
  std::unique_ptr<nvmf::RegisteredMemory> memory_;
  std::unique_ptr<nvmf::BufferPool> buffers_;
  std::vector<Slot> slots_;
  Slot* free_ = nullptr;
  uint32_t in_flight_ = 0;

  Slot* receiving_ = nullptr;  // a write whose payload has not all come
  uint32_t received_ = 0;
  bool discarding_ = false;  // the payload of a write that is refused
  uint32_t failure_ = 0;     // with which

  Slot* replies_head_ = nullptr;
  Slot* replies_tail_ = nullptr;
  size_t head_sent_ = 0;  // bytes of the first reply that have left

  size_t begin_ = 0, end_ = 0;  // unread bytes
  std::array<uint8_t, 64 * 1024> in_;
};

}  // namespace nvmeof::attach::nbd
