#include "rdma/verbs/library.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

namespace nvmeof::rdma::verbs {

namespace {

struct Symbol {
  const char* name;
  void** entry;
};

Error missing(const std::string& what) {
  return Error{ENOTSUP, "The verbs provider needs libibverbs and librdmacm (" + what +
                            "): install rdma-core, on Debian: apt-get install ibverbs-providers "
                            "librdmacm1"};
}

template <size_t N>
Result<void> fill(const char* file, const Symbol (&symbols)[N]) {
  // Never closed: the provider libraries that it loads keep threads and handlers of their own.
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return missing(dlerror());
  for (const Symbol& symbol : symbols) {
    *symbol.entry = dlsym(handle, symbol.name);
    if (*symbol.entry == nullptr)
      return missing(std::string(file) + " is too old, it has no " + symbol.name);
  }
  return {};
}

Result<void> fill(Library* library) {
#define NVMEOF_SYMBOL(field, symbol) {#symbol, reinterpret_cast<void**>(&library->field)},
  const Symbol ibverbs[] = {NVMEOF_IBVERBS(NVMEOF_SYMBOL)};
  const Symbol rdmacm[] = {NVMEOF_RDMACM(NVMEOF_SYMBOL)};
#undef NVMEOF_SYMBOL
  if (auto filled = fill("libibverbs.so.1", ibverbs); !filled) return filled;
  if (auto filled = fill("librdmacm.so.1", rdmacm); !filled) return filled;
  // Registered memory must stay with this process when it starts another one. New kernels need
  // nothing for that, and then this does nothing.
  library->fork_init();
  return {};
}

}  // namespace

Result<const Library*> load_library() {
  static std::mutex mutex;
  static Library library;
  static bool loaded = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) {
    if (auto filled = fill(&library); !filled) return filled.error();
    loaded = true;
  }
  return static_cast<const Library*>(&library);
}

}  // namespace nvmeof::rdma::verbs
