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
      residency(of, blocks, use, access, backing, copies),
      driver(of, use, residency),
      allocations(of, blocks, use, access, backing, copies, residency) {}

protocol::MemoryReport DeviceMemory::report() {
  protocol::MemoryReport report{};
  report.resident = use.resident();
  report.allocated = std::max<uint64_t>(use.allocated(), report.resident);
  report.unswappable = residency.all_stays() ? report.resident : std::min<uint64_t>(use.unswappable(), report.resident);
  report.swappable_host = arena.ready_bytes();
  report.charged = device.limit().charged();
  return report;
}

void DeviceMemory::reset_after_fork() {
  blocks.mutex.reset_after_fork();
  arena.reset_after_fork();
  driver.reset_after_fork();
}

}  // namespace nvshare::interposer
