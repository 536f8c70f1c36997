#include "simgpu/address_space.h"

#include <unistd.h>

namespace simgpu {

AddressSpace::AddressSpace() {
  // Copies follow each other closely: without preference for writers an unmap might wait for ever.
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock_, &attributes);
  pthread_rwlockattr_destroy(&attributes);
}

const Range* AddressSpace::find_locked(uint64_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return address < range.end() ? &range : nullptr;
}

AddressSpace::Reading::Reading(AddressSpace& space) : space_(space) { pthread_rwlock_rdlock(&space_.lock_); }
AddressSpace::Reading::~Reading() { pthread_rwlock_unlock(&space_.lock_); }

const Range* AddressSpace::Reading::find(uint64_t address) const { return space_.find_locked(address); }

bool AddressSpace::Reading::reservation(uint64_t address, uint64_t* base, uint64_t* size) const {
  auto after = space_.reservations_.upper_bound(address);
  if (after == space_.reservations_.begin()) return false;
  --after;
  if (address - after->first >= after->second) return false;
  if (base != nullptr) *base = after->first;
  if (size != nullptr) *size = after->second;
  return true;
}

uint64_t AddressSpace::Reading::first_bad(uint64_t address, uint64_t bytes, bool write) const {
  const uint64_t end = address + bytes;
  while (address < end) {
    const Range* range = find(address);
    if (range == nullptr || !(write ? range->writable : range->readable)) return address;
    address = range->end();
  }
  return 0;
}

AddressSpace::Writing::Writing(AddressSpace& space) : space_(space) { pthread_rwlock_wrlock(&space_.lock_); }
AddressSpace::Writing::~Writing() { pthread_rwlock_unlock(&space_.lock_); }

Range& AddressSpace::Writing::add(Range range) {
  range.id = space_.next_id_++;
  return space_.ranges_.insert_or_assign(range.base, std::move(range)).first->second;
}

Range* AddressSpace::Writing::find(uint64_t address) { return const_cast<Range*>(space_.find_locked(address)); }

bool AddressSpace::Writing::within_reservation(uint64_t address, uint64_t bytes) const {
  auto after = space_.reservations_.upper_bound(address);
  if (after == space_.reservations_.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second && address + bytes >= address;
}

bool AddressSpace::Writing::overlaps(uint64_t address, uint64_t bytes) const {
  const auto next = space_.ranges_.lower_bound(address);
  if (next != space_.ranges_.end() && next->first < address + bytes) return true;
  return space_.find_locked(address) != nullptr;
}

}  // namespace simgpu
