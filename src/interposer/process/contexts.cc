#include "interposer/process/contexts.h"

#include <algorithm>

#include "interposer/process/device.h"

namespace nvshare::interposer {

using cuda::CUcontext;

Contexts::Context* Contexts::find(CUcontext context) {
  for (Context& known : contexts_) {
    if (known.handle == context) return &known;
  }
  return nullptr;
}

// ---- what the program has ----

void Contexts::made(CUcontext context, int ordinal) {
  Lock lock(mutex_);
  if (find(context) == nullptr) contexts_.push_back({context, ordinal, 0, 0, 0});
}

void Contexts::primary_made(CUcontext context, int ordinal) {
  Lock lock(mutex_);
  Context* known = find(context);
  if (known == nullptr) {
    contexts_.push_back({context, ordinal, 1, 0, 0});
  } else {
    ++known->primary_references;
  }
}

CUcontext Contexts::primary(int ordinal) {
  Lock lock(mutex_);
  for (const Context& known : contexts_) {
    if (known.ordinal == ordinal && known.primary_references > 0) return known.handle;
  }
  return nullptr;
}

bool Contexts::release_keeps_primary(int ordinal) {
  Lock lock(mutex_);
  for (Context& known : contexts_) {
    if (known.ordinal != ordinal || known.primary_references < 2) continue;
    --known.primary_references;
    return true;
  }
  return false;
}

void Contexts::attached(CUcontext context) {
  Lock lock(mutex_);
  if (Context* known = find(context)) ++known->attachments;
}

bool Contexts::detach_keeps(CUcontext context) {
  Lock lock(mutex_);
  Context* known = find(context);
  if (known == nullptr) return false;
  if (known->primary_references > 0) return true;  // an H200 keeps it, however often it is detached, and no longer for those who attached
  if (known->attachments == 0) return false;
  --known->attachments;
  return true;
}

int Contexts::ordinal_of(CUcontext context) {
  Lock lock(mutex_);
  const Context* known = find(context);
  return known != nullptr ? known->ordinal : -1;
}

uint32_t Contexts::gpus() {
  uint32_t gpus = 0;
  Lock lock(mutex_);
  for (const Context& known : contexts_) gpus |= 1u << known.ordinal;
  return gpus;
}

// ---- the end of one ----

int Contexts::leaves(CUcontext context) {
  Lock lock(mutex_);
  Context* known = find(context);
  if (known == nullptr) return -1;
  const int ordinal = known->ordinal;
  ++known->going;  // nobody pins it from now on
  for (; known != nullptr && known->pins > 0; known = find(context)) changed_.wait(mutex_);
  return ordinal;
}

void Contexts::stays(CUcontext context) {
  Lock lock(mutex_);
  if (Context* known = find(context)) --known->going;
}

int Contexts::left(CUcontext context) {
  count_destroyed();
  Lock lock(mutex_);
  const Context* known = find(context);
  if (known == nullptr) return -1;
  const int ordinal = known->ordinal;
  std::erase_if(contexts_, [context](const Context& each) { return each.handle == context; });
  return ordinal;
}

void Contexts::tell(Device& device, CUcontext only_if) {
  Lock lock(mutex_);
  if (!device.link().shared() || (only_if != nullptr && find(only_if) == nullptr)) return;
  const bool there =
      std::any_of(contexts_.begin(), contexts_.end(), [&](const Context& known) { return known.ordinal == device.ordinal(); });
  device.turns().take(turn::ContextChanged{there});
}

// ---- pins ----

CUcontext Contexts::pin(int ordinal) {
  Lock lock(mutex_);
  Context* found = nullptr;
  for (Context& known : contexts_) {
    if (known.ordinal != ordinal || known.going > 0) continue;
    if (found == nullptr || (found->failed && !known.failed)) found = &known;
  }
  if (found == nullptr) return nullptr;
  ++found->pins;
  return found->handle;
}

bool Contexts::failed(CUcontext context) {
  Lock lock(mutex_);
  Context* lost = find(context);
  if (lost == nullptr) return true;  // it has gone meanwhile
  lost->failed = true;
  return std::any_of(contexts_.begin(), contexts_.end(),
                     [lost](const Context& other) { return other.ordinal == lost->ordinal && other.going == 0 && !other.failed; });
}

void Contexts::unpin(CUcontext context) {
  Lock lock(mutex_);
  if (Context* known = find(context)) --known->pins;
  changed_.notify_all();
}

bool Contexts::pin_all(int ordinal, std::vector<CUcontext>* pinned) {
  bool whole = true;
  Lock lock(mutex_);
  for (Context& known : contexts_) {
    if (ordinal != kAllGpus && known.ordinal != ordinal) continue;
    whole = whole && known.going == 0;
    if (known.going > 0) continue;
    ++known.pins;
    pinned->push_back(known.handle);
  }
  return whole;
}

std::vector<CUcontext> Contexts::all(int ordinal) {
  std::vector<CUcontext> found;
  Lock lock(mutex_);
  for (const Context& known : contexts_) {
    if (ordinal == kAllGpus || known.ordinal == ordinal) found.push_back(known.handle);
  }
  return found;
}

Contexts::Pinned Contexts::pin(CUcontext context) {
  Lock lock(mutex_);
  Context* known = find(context);
  if (known == nullptr) return Pinned::kGone;
  if (known->going > 0) return Pinned::kOnItsWayOut;
  ++known->pins;
  return Pinned::kYes;
}

void Contexts::reset_after_fork() {
  mutex_.reset_after_fork();
  contexts_.clear();
  destroyed_.store(0, std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
