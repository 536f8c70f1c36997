#include "scheduler/testing/failing_memory.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kAllPass = INT64_MAX / 2;

std::atomic<int64_t> passing_left = kAllPass;
std::atomic<int64_t> failing_left = 0;
std::atomic<bool> any_failed = false;
thread_local bool is_spared_here = false;

bool fails() {
  if (is_spared_here || failing_left.load() <= 0 || passing_left.fetch_sub(1) > 0 || failing_left.fetch_sub(1) <= 0) return false;
  any_failed = true;
  return true;
}

}  // namespace

FailingMemory::FailingMemory(int64_t passing, int64_t failing) {
  any_failed = false;
  passing_left = passing;
  failing_left = failing;
}

FailingMemory::~FailingMemory() {
  failing_left = 0;
  passing_left = kAllPass;
}

bool FailingMemory::has_failed() const { return any_failed; }

void FailingMemory::spare_this_thread(bool is_spared) { is_spared_here = is_spared; }

}  // namespace nvshare::scheduler

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return nvshare::scheduler::fails() ? nullptr : std::malloc(size != 0 ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
