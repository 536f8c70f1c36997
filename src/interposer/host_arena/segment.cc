#include "interposer/host_arena/segment.h"

namespace nvshare::interposer {

namespace {

static_assert(protocol::kArenaSegmentBytesMax / HostSegment::kUnitBytes <= 128);

// The first run of `count` clear bits below `limit`, or -1.
int find_run(const uint64_t* bits, uint32_t limit, uint32_t count) {
  uint32_t run = 0;
  for (uint32_t i = 0; i < limit; ++i) {
    run = (bits[i / 64] >> (i % 64) & 1) != 0 ? 0 : run + 1;
    if (run == count) return static_cast<int>(i + 1 - count);
  }
  return -1;
}

}  // namespace

bool HostSegment::take(size_t wanted, HostSlot* slot) {
  const auto limit = static_cast<uint32_t>(bytes / kUnitBytes);
  const auto units = static_cast<uint32_t>(round_up(wanted) / kUnitBytes);
  if (!there() || leaving || used_units_ + units > limit) return false;
  const int found = find_run(used_, limit, units);
  if (found < 0) return false;
  const auto first = static_cast<uint32_t>(found);
  for (uint32_t i = first; i < first + units; ++i) used_[i / 64] |= uint64_t{1} << (i % 64);
  used_units_ += units;
  slot->data = data + size_t{first} * kUnitBytes;
  slot->bytes = static_cast<uint32_t>(size_t{units} * kUnitBytes);
  return true;
}

void HostSegment::give_back(const HostSlot& slot) {
  const size_t first = static_cast<size_t>(slot.data - data) / kUnitBytes;
  const size_t units = slot.bytes / kUnitBytes;
  for (size_t i = first; i < first + units; ++i) used_[i / 64] &= ~(uint64_t{1} << (i % 64));
  used_units_ -= static_cast<uint32_t>(units);
}

}  // namespace nvshare::interposer
