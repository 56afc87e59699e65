// One client of one lane: from its connection until nothing of it is left.
//
//   Greeting   its Hello has not come
//   Serving    its requests go to the lane
//   Draining   it left, broke the rules or was sent away: requests in flight are waited for,
//              because they name its memory
//   Over       nothing is held any more
//
// All on the lane's reactor. No allocation but in the greeting.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attach/client/client_counters.h"
#include "attach/client/server_rings.h"
#include "attach/client/shared_memory.h"
#include "attach/namespace_lane.h"
#include "reactor/reactor.h"

namespace nvmeof::attach {

class ClientSession {
 public:
  enum class State : uint8_t { Greeting, Serving, Draining, Over };

  // How long a Hello is waited for, and how often the socket of a client is looked at while its
  // reactor does not sleep. Doorbells need no look then; the end of a client may wait so long.
  static constexpr reactor::TimeNs kGreetingLimit = 5'000'000'000;
  static constexpr reactor::TimeNs kLookEvery = 2'000'000;

  // Owns `socket` (SOCK_SEQPACKET, connected).
  ClientSession(int socket, NamespaceLane* lane, ClientCounters* counters, reactor::TimeNs now);
  ~ClientSession();  // Greeting or Over, or never given to a reactor
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  State state() const { return state_; }
  int socket() const { return socket_; }  // to be watched while is_listening()
  bool is_listening() const { return state_ == State::Greeting || state_ == State::Serving; }
  // Why it was ended by us; empty when the client left.
  const std::string& reason() const { return reason_; }

  int take(reactor::TimeNs now);  // what the client sent; returns how many things were handled
  int publish();                  // completions, to the client
  bool arm();
  reactor::TimeNs next_deadline() const;
  // Says Goodbye. A second call does nothing.
  void end(int error, const std::string& reason);

 private:
  struct Slot {
    IoRequest request;
    ClientSession* session = nullptr;
    uint64_t user_data = 0;
  };

  int look_at_socket(reactor::TimeNs now);
  void greet(const uint8_t* bytes, size_t length);
  Result<void> prepare(const uint8_t* bytes, size_t length);
  bool send_answer(uint32_t message, int error, const std::string& reason, int memory);
  int take_entries();
  void start(const nvmeof_ring_entry& entry);
  static void done(IoRequest* request, IoEnd end, uint16_t status);
  void complete(uint64_t user_data, uint8_t end, uint16_t status);
  void drain();

  int socket_;
  NamespaceLane* const lane_;
  ClientCounters* const counters_;
  State state_ = State::Greeting;
  std::string reason_;
  reactor::TimeNs greeting_until_;
  reactor::TimeNs next_look_;
  bool armed_ = false;

  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<nvmf::RegisteredMemory> registered_;
  std::unique_ptr<ServerRings> rings_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
};

}  // namespace nvmeof::attach
