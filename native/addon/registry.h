// Ids for JavaScript: small integers that are never given twice in a process's life (they would
// have to wrap at 2^32). JavaScript thread only.
#pragma once
#include <napi.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <string>

#include "addon/errors.h"

namespace nvmeof::addon {

template <typename T>
class Registry {
 public:
  explicit Registry(const char* noun) : noun_(noun) {}

  uint32_t reserve() { return next_++; }
  T& put(uint32_t id, T object) {
    return objects_.insert_or_assign(id, std::move(object)).first->second;
  }
  uint32_t add(T object) {
    const uint32_t id = reserve();
    put(id, std::move(object));
    return id;
  }
  T* find(uint32_t id) {
    const auto found = objects_.find(id);
    return found == objects_.end() ? nullptr : &found->second;
  }
  // Throws ENOENT where there is none.
  T& get(Napi::Env env, uint32_t id) {
    if (T* found = find(id)) return *found;
    throw_error(env, {ENOENT, "there is no " + std::string(noun_) + " " + std::to_string(id)});
  }
  // True for an id that was given out once, whether or not its object still lives.
  bool known(uint32_t id) const { return id != 0 && id < next_; }
  void erase(uint32_t id) { objects_.erase(id); }
  void clear() { objects_.clear(); }
  size_t size() const { return objects_.size(); }
  std::map<uint32_t, T>& all() { return objects_; }

 private:
  const char* noun_;
  uint32_t next_ = 1;
  std::map<uint32_t, T> objects_;
};

}  // namespace nvmeof::addon
