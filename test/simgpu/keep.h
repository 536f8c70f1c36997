// Objects that only the program's handles point to. Kept in a list, so that a leak checker blames nobody for a handle that a program leaves
// open at its end, as it may with the real driver.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>

namespace simgpu {

template <typename T>
class Kept {
 public:
  template <typename... Arguments>
  static T* make(Arguments&&... arguments) {
    auto* object = new T(std::forward<Arguments>(arguments)...);
    Kept& all = get();
    std::lock_guard lock(all.mutex_);
    all.objects_.insert(object);
    return object;
  }
  static void drop(T* object) {
    Kept& all = get();
    {
      std::lock_guard lock(all.mutex_);
      all.objects_.erase(object);
    }
    delete object;
  }

 private:
  static Kept& get() {
    static auto* const kAll = new Kept;
    return *kAll;
  }
  std::mutex mutex_;
  std::unordered_set<T*> objects_;
};

}  // namespace simgpu
