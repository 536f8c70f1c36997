// Which addresses of this process the GPU may use. A device address is a host address of the process, so data is real; what is backed and
// accessible is looked up here and not left to SIGSEGV, so that a wrong access is reported like the driver would.
//
// Whoever moves data holds a Reading over the piece that it moves: nothing is unmapped under a running memcpy.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace simgpu {

struct Context;
struct GraphAllocation;

enum class RangeKind { kPlain, kMapping, kManaged, kPool, kHost, kRegistered, kImported };

// Physical memory of a device: a memory file, so that it can be mapped at several places and handed to other processes.
struct Physical {
  Physical(int fd_, uint64_t bytes_, int device_, int handle_types_)
      : fd(fd_), bytes(bytes_), device(device_), handle_types(handle_types_) {}
  ~Physical();  // gives the memory back to the device
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  const int fd;
  const uint64_t bytes;
  const int device;
  const int handle_types;  // CUmemAllocationHandleType: how it may be exported
  uint64_t handle = 0;     // the one number that it ever has
  bool charged = true;     // imported memory is charged to its exporter
};

// Of each page: whether it has been on a device before, as a second eviction is cheaper than the first; and where it was last prefetched
// to.
struct ManagedPages {
  static constexpr int kNowhere = -2;  // as the driver says it

  std::mutex mutex;
  std::vector<bool> seen;
  std::vector<int> prefetched_to;
};

struct Range {
  uint64_t base = 0;
  uint64_t size = 0;
  RangeKind kind = RangeKind::kPlain;
  int device = 0;
  bool readable = true;
  bool writable = true;
  uint32_t accessors = 0;  // kMapping: devices (bits) that may use it
  Context* context = nullptr;
  uint64_t id = 0;  // unique in the process
  bool sync_memops = false;
  unsigned flags = 0;  // as passed by the caller
  uint64_t owned = 0;  // bytes that freeing it unmaps (kPlain of its own, kManaged, kHost)
  void* pool = nullptr;
  std::shared_ptr<Physical> physical;  // kMapping
  uint64_t physical_offset = 0;
  std::shared_ptr<ManagedPages> pages;     // kManaged
  std::shared_ptr<GraphAllocation> graph;  // kPool, of a memory node: its memory stays with the graphs when it is freed

  uint64_t end() const { return base + size; }
  bool on_device() const {
    return kind == RangeKind::kPlain || kind == RangeKind::kMapping || kind == RangeKind::kPool || kind == RangeKind::kImported;
  }
  bool on_host() const { return kind == RangeKind::kHost || kind == RangeKind::kRegistered; }
};

class AddressSpace {
 public:
  AddressSpace();

  // Shared access; do not nest.
  class Reading {
   public:
    explicit Reading(AddressSpace& space);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    // The range that holds the address, or null. Valid while this lives.
    const Range* find(uint64_t address) const;
    bool reserved(uint64_t address) const { return reservation(address, nullptr, nullptr); }
    // The reservation that holds the address; outlets may be null.
    bool reservation(uint64_t address, uint64_t* base, uint64_t* size) const;
    template <typename Visit>
    void each(Visit visit) const {
      for (const auto& [base, range] : space_.ranges_) visit(range);
    }
    // The first address of [address, address+bytes) that the GPU may not use, or 0: all of it may be.
    uint64_t first_bad(uint64_t address, uint64_t bytes, bool write) const;

   private:
    AddressSpace& space_;
  };

  class Writing {
   public:
    explicit Writing(AddressSpace& space);
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    std::map<uint64_t, Range>& ranges() { return space_.ranges_; }
    std::map<uint64_t, uint64_t>& reservations() { return space_.reservations_; }
    // Adds a range with a fresh id.
    Range& add(Range range);
    // The range that holds the address, or null.
    Range* find(uint64_t address);
    // The reservation that holds all of [address, address+bytes).
    bool within_reservation(uint64_t address, uint64_t bytes) const;
    bool overlaps(uint64_t address, uint64_t bytes) const;

   private:
    AddressSpace& space_;
  };

 private:
  const Range* find_locked(uint64_t address) const;
  pthread_rwlock_t lock_;
  std::map<uint64_t, Range> ranges_;
  std::map<uint64_t, uint64_t> reservations_;  // base -> size
  uint64_t next_id_ = 1;
};

}  // namespace simgpu
