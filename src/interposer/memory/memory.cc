#include "interposer/memory/memory.h"

#include <algorithm>

#include "interposer/process/device.h"

namespace nvshare::interposer {

DeviceMemory::DeviceMemory(Device& of)
    : device(of),
      arena(of),
      access(of, blocks),
      backing(of, blocks, arena, access),
      copies(blocks, arena),
      residency(of, blocks, use, copies),
      pieces(of, blocks, use, access, backing, residency),
      driver(of, use, residency),
      freed(of, blocks, use, access, backing, copies),
      stream_frees(of, blocks, freed),
      new_blocks(of, blocks, use, access, backing, residency, freed),
      exports(of, blocks, use, copies),
      allocations(of, blocks, use, backing, freed, stream_frees, new_blocks) {}

protocol::MemoryReport DeviceMemory::report() {
  protocol::MemoryReport report{};
  report.resident = use.resident();
  report.allocated = std::max<uint64_t>(use.allocated(), report.resident);
  report.unswappable = residency.all_stays() ? report.resident : std::min<uint64_t>(use.unswappable(), report.resident);
  report.swappable_host = arena.ready_bytes();
  report.charged = device.limit().charged();
  return report;
}

void DeviceMemory::give_back_caches(int64_t patience_ns) {
  stream_frees.collect_within(patience_ns);
  freed.trim();
  driver.trim();
}

void DeviceMemory::reset_after_fork() {
  blocks.mutex.reset_after_fork();
  arena.reset_after_fork();
  driver.reset_after_fork();
}

}  // namespace nvshare::interposer
