// An object that is made when it is first asked for and never destroyed: threads of ours may run until the process is gone. No static
// constructor, no guard of the C++ library. Safe from any thread; once it is there, asking takes one load.
#pragma once

#include <atomic>
#include <new>

#include "interposer/sync.h"

namespace nvshare::interposer {

template <class Object>
Object& made_once() {
  static constinit Mutex making;
  alignas(Object) static constinit unsigned char storage[sizeof(Object)] = {};
  static constinit std::atomic<Object*> instance{nullptr};
  Object* found = instance.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return *found;
  Lock lock(making);
  found = instance.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = new (storage) Object;
    instance.store(found, std::memory_order_release);
  }
  return *found;
}

}  // namespace nvshare::interposer
