// Which GPU may use whose memory. The driver keeps that by pair of contexts, virtual memory by GPU and mapping.
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;

void Process::peer_enabled(CUcontext peer) {
  CUcontext context = nullptr;
  Device* device = current_device(&context);
  if (device == nullptr) return;
  Lock in_order(peers_mutex_);
  PeerAccess access{context, peer, device->ordinal(), -1};
  {
    Lock lock(mutex_);
    if (const Context* known = find_context(peer)) access.to_ordinal = known->ordinal;
    if (access.to_ordinal < 0) return;
    peers_.push_back(access);
  }
  tell_accessors(1u << access.to_ordinal);
}

void Process::peer_disabled(CUcontext peer) {
  CUcontext context = nullptr;
  if (current_device(&context) == nullptr) return;
  Lock in_order(peers_mutex_);
  uint32_t concerned = 0;
  {
    Lock lock(mutex_);
    std::erase_if(peers_, [&](const PeerAccess& access) {
      if (access.from != context || access.to != peer) return false;
      concerned |= 1u << access.to_ordinal;
      return true;
    });
  }
  tell_accessors(concerned);
}

uint32_t Process::gpus_with_contexts() {
  uint32_t gpus = 0;
  Lock lock(mutex_);
  for (const Context& known : contexts_) gpus |= 1u << known.ordinal;
  return gpus;
}

void Process::forget_peers(CUcontext context) {
  Lock in_order(peers_mutex_);
  uint32_t concerned = 0;
  {
    Lock lock(mutex_);
    std::erase_if(peers_, [&](const PeerAccess& access) {
      if (access.from != context && access.to != context) return false;
      concerned |= 1u << access.to_ordinal;
      return true;
    });
  }
  tell_accessors(concerned);
}

void Process::tell_accessors(uint32_t ordinals) {
  for (int ordinal = 0; ordinal < kDevicesMax; ++ordinal) {
    if ((ordinals >> ordinal & 1) == 0) continue;
    uint32_t mask = 1u << ordinal;
    {
      Lock lock(mutex_);
      for (const PeerAccess& access : peers_) {
        if (access.to_ordinal == ordinal) mask |= 1u << access.from_ordinal;
      }
    }
    accessors_[ordinal].store(mask, std::memory_order_release);
    if (Device* owner = device(ordinal)) owner->memory().backing.set_accessors(mask);
    ipc_.set_accessors(ordinal, mask);
  }
}

}  // namespace nvshare::interposer
