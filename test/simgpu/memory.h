// What the memory files share.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

// New device memory holds this, never zeros: a program that relies on zeros shall fail here too.
inline constexpr unsigned char kPoison = 0xA5;

inline uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Anonymous memory of the process, or 0.
uint64_t map_memory(uint64_t bytes, uint64_t alignment);
void unmap_memory(uint64_t address, uint64_t bytes);
// Memory that begins there and was handed to other processes is no longer this one's to hand over.
void forget_shared(uint64_t address);
// Allocations of a pool that is shared between processes (ipc.cc); a pool has a number in the process that made it.
CUresult export_pool_pointer(CUdeviceptr address, uint32_t pool, CUmemPoolPtrExportData* out);
CUresult import_pool_pointer(const CUmemPoolPtrExportData& data, uint64_t exporter, uint32_t number, void* pool, CUdeviceptr* out);
// Takes memory of another process out of the address space.
CUresult free_imported(CUdeviceptr address);

// Plain device memory: charged, poisoned, known to the address space.
CUresult allocate(Context& context, uint64_t bytes, RangeKind kind, void* pool, CUdeviceptr* out);
// Takes the range out of the address space and gives its memory back. Reports work in flight on it when `check` is set.
CUresult free_range(CUdeviceptr address, bool check);

// Managed memory of a range's part, as pages.
struct Pages {
  uint64_t first;
  uint64_t count;
};
inline Pages pages_of(uint64_t address, uint64_t bytes) {
  const uint64_t first = address / kPageBytes;
  return {first, (address + bytes + kPageBytes - 1) / kPageBytes - first};
}
void forget_managed(const Range& range);
// Managed memory of a pool, or (null) of none.
CUresult allocate_managed(Context& context, uint64_t bytes, unsigned flags, void* pool, CUdeviceptr* out);

// Small allocations share 2 MiB blocks, as on the real driver.
class Blocks {
 public:
  static Blocks& get();
  // 0: no memory left. bytes at most kSmallMax. `context`: with which the memory ends; null: memory of pools, which are the device's.
  uint64_t allocate(Context* context, int device, uint64_t bytes);
  void free(uint64_t address, uint64_t bytes);
  // All blocks of a context, whose ranges are gone.
  void drop(Context& context);

 private:
  struct Block {
    Context* context;
    int device;
    uint64_t base;
    std::map<uint64_t, uint64_t> free;  // offset -> bytes
  };
  std::mutex mutex_;
  std::vector<Block> blocks_;
};
inline constexpr uint64_t kSmallMax = 1u << 20;
inline constexpr uint64_t kSmallUnit = 512;

// As which it may be exported (CUmemAllocationHandleType); `pool`: of a Range.
int handle_types_of_pool(const void* pool);
bool pool_is_open_to(const void* pool, int device);  // by cuMemPoolSetAccess; its own device is not asked about

}  // namespace simgpu
