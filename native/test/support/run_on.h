// Runs a callable on a reactor's thread, and waits until it has run.
#pragma once
#include "reactor/reactor.h"

namespace nvmeof::test {

template <typename F>
void run_on(reactor::Reactor& reactor, F&& function) {
  reactor.run_and_wait(function);
}

}  // namespace nvmeof::test
