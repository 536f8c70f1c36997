// The addresses that the program manages itself: what it has reserved, what it has mapped where, with which access. Books only: no driver,
// no locks (program_vmm.h holds one around it). Every rule here is the driver's: a mapping is taken away as a whole, nothing is mapped
// over something else or outside a reservation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

struct Mapping;
struct Block;

// Physical memory as the program knows it: what cuMemCreate made or cuMemImportFromShareableHandle opened.
struct ProgramHandle {
  cuda::CUmemGenericAllocationHandle number = 0;  // what the program holds: ours if `block` is set, else the driver's
  cuda::CUmemAllocationProp properties{};
  size_t bytes = 0;  // 0: imported, the driver does not say
  int ordinal = -1;  // of the GPU that it lies on; -1: none that we govern
  uint32_t references = 1;
  Block* block = nullptr;          // its memory comes and goes; null: the driver's own
  bool counted = false;            // the driver's own, but GPU memory that this process pays for
  bool held = false;               // the same, and counted as memory that cannot move
  uint64_t id = 0;                 // unique in the process
  std::vector<Mapping*> mappings;  // where it is mapped
};

struct Mapping {
  cuda::CUdeviceptr base = 0;
  size_t bytes = 0;
  size_t offset = 0;  // into the handle's memory
  ProgramHandle* handle = nullptr;
  bool placed = false;                        // the driver has it, too
  std::vector<cuda::CUmemAccessDesc> access;  // as set last, for each location
  uint64_t id = 0;                            // unique in the process

  cuda::CUdeviceptr end() const { return base + bytes; }
  // What that GPU may do with it.
  cuda::CUmemAccess_flags access_of(const cuda::CUmemLocation& location) const;
  void set_access(const cuda::CUmemAccessDesc& description);
};

class AddressBook {
 public:
  struct Reservation {
    cuda::CUdeviceptr base;
    size_t bytes;
  };

  void add_reservation(cuda::CUdeviceptr base, size_t bytes);
  void remove_reservation(cuda::CUdeviceptr base);
  // The reservation that holds all of the range, or null.
  const Reservation* reservation(cuda::CUdeviceptr address, size_t bytes) const;

  // Something is mapped in the range.
  bool overlaps(cuda::CUdeviceptr address, size_t bytes) const;
  // The mapping that the address lies in, or null.
  Mapping* find(cuda::CUdeviceptr address) const;
  // The mappings that make up the range, in order; empty when one is cut or there is a hole.
  std::vector<Mapping*> cover(cuda::CUdeviceptr address, size_t bytes) const;
  // Every mapping that the range touches.
  std::vector<Mapping*> touched(cuda::CUdeviceptr address, size_t bytes) const;

  // Takes ownership. The range must be free.
  void insert(Mapping* mapping);
  void erase(Mapping* mapping);  // deletes it
  size_t mapping_count() const { return mappings_.size(); }

  // Takes ownership until remove().
  void add_handle(ProgramHandle* handle);
  void remove_handle(ProgramHandle* handle);  // the caller deletes it
  ProgramHandle* handle(cuda::CUmemGenericAllocationHandle number) const;

 private:
  size_t first_after(cuda::CUdeviceptr address) const;  // index of the first mapping whose base is larger

  std::vector<Reservation> reservations_;  // by base
  std::vector<Mapping*> mappings_;         // by base
  std::vector<ProgramHandle*> handles_;    // by number
};

}  // namespace nvshare::interposer
