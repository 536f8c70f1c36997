// Memory that runs out, for tests: operator new throws where it is told to.
#pragma once

#include <cstdint>

namespace nvshare::scheduler {

// While it lives: so many allocations of threads that are not spared pass, and so many after them fail. One at a time.
class FailingMemory {
 public:
  FailingMemory(int64_t passing, int64_t failing);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  bool has_failed() const;

  static void spare_this_thread(bool is_spared);
};

}  // namespace nvshare::scheduler
