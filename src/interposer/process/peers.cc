#include "interposer/process/peers.h"

#include <algorithm>

#include "interposer/process/process.h"

namespace nvshare::interposer {

using cuda::CUcontext;

void PeerAccess::enabled(CUcontext peer) {
  CUcontext context = nullptr;
  const Device* device = process_.current_device(&context);
  if (device == nullptr) return;
  Lock lock(mutex_);
  // One that goes meanwhile is forgotten when this is done.
  const int to = process_.contexts.ordinal_of(peer);
  if (to < 0) return;
  pairs_.push_back({context, peer, device->ordinal(), to});
  tell(1u << to);
}

template <typename Which>
void PeerAccess::forget(Which which) {
  uint32_t concerned = 0;
  Lock lock(mutex_);
  std::erase_if(pairs_, [&](const Pair& pair) {
    if (!which(pair)) return false;
    concerned |= 1u << pair.to_ordinal;
    return true;
  });
  tell(concerned);
}

void PeerAccess::disabled(CUcontext peer) {
  CUcontext context = nullptr;
  if (process_.current_device(&context) == nullptr) return;
  forget([&](const Pair& pair) { return pair.from == context && pair.to == peer; });
}

void PeerAccess::context_gone(CUcontext context) {
  forget([&](const Pair& pair) { return pair.from == context || pair.to == context; });
}

bool PeerAccess::is_open(CUcontext context, int ordinal) {
  if (accessors(ordinal) == 1u << ordinal) return false;
  Lock lock(mutex_);
  return std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.from == context && pair.to_ordinal == ordinal; });
}

void PeerAccess::tell(uint32_t ordinals) {
  for (int ordinal = 0; ordinal < kDevicesMax; ++ordinal) {
    if ((ordinals >> ordinal & 1) == 0) continue;
    uint32_t mask = 1u << ordinal;
    for (const Pair& pair : pairs_) {
      if (pair.to_ordinal == ordinal) mask |= 1u << pair.from_ordinal;
    }
    accessors_[ordinal].store(mask, std::memory_order_release);
    if (Device* owner = process_.device(ordinal)) owner->memory().access.set_accessors(mask);
    process_.ipc.set_accessors(ordinal, mask);
  }
}

void PeerAccess::reset_after_fork() {
  mutex_.reset_after_fork();
  pairs_.clear();
}

}  // namespace nvshare::interposer
