// Commands of JavaScript on their way to the reactors. Of what one turn of JavaScript submits, the
// first command for a reactor leaves at once, those behind it a batch at a time, and the rest with
// flush(): a task and a train of packets for each would cost the reactor more than the command
// itself. All on the JavaScript thread.
#pragma once
#include <vector>

namespace nvmeof::addon {

class CommandsOnReactor;
struct SubmittedCommand;

class Submissions {
 public:
  void add(CommandsOnReactor* on, SubmittedCommand* command);
  // The turn is over, or something else goes to a reactor and must not overtake.
  void flush();

 private:
  static constexpr unsigned kBatch = 16;
  struct Batch {
    CommandsOnReactor* on;
    SubmittedCommand* first = nullptr;  // linked by `next`
    SubmittedCommand* last = nullptr;
    unsigned count = 0;
  };
  Batch* batch_of(CommandsOnReactor* on);  // null: nothing went there in this turn
  static void send(CommandsOnReactor* on, SubmittedCommand* first);

  std::vector<Batch> batches_;  // of this turn: as many as there are reactors in use
};

}  // namespace nvmeof::addon
