// Runs a callable on a reactor's thread, and waits until it has run.
#pragma once
#include <type_traits>

#include "reactor/reactor.h"

namespace nvmeof::test {

template <typename F>
void run_on(reactor::Reactor& reactor, F&& function) {
  using Plain = std::remove_reference_t<F>;
  reactor.run_and_wait({[](void* context, uint64_t) { (*static_cast<Plain*>(context))(); },
                        const_cast<void*>(static_cast<const void*>(&function)), 0});
}

}  // namespace nvmeof::test
