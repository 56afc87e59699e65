// One client's rings as the server uses them. All that is read from them is hostile: an entry is
// copied once and only the copy is looked at; the one index that the client writes is compared with
// our own; nothing that we need later is kept there.
#pragma once
#include <cstdint>

#include "client/ring_layout.h"

namespace nvmeof::attach {

class ServerRings {
 public:
  ServerRings(uint8_t* base, const nvmeof_ring_layout& layout, uint32_t entries);

  // How many entries the client says to have added. More than `entries`: nonsense.
  uint32_t submitted() const;
  nvmeof_ring_entry take();  // the next

  void put(const nvmeof_ring_completion& completion);
  // Shows the client what was put; true: it sleeps, and wants a doorbell.
  bool publish();

  // Before sleep; false when there are entries.
  bool arm();
  void disarm();

 private:
  nvmeof_ring_words* words_;
  uint64_t* submissions_;
  uint64_t* completions_;
  const uint32_t mask_;
  uint32_t taken_ = 0;
  uint32_t put_ = 0;
  uint32_t published_ = 0;
};

}  // namespace nvmeof::attach
