// Copies and fills as work.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

inline uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// `width` bytes in each of `rows` rows in each of `slices` slices; distances in bytes.
struct Transfer {
  uint64_t target = 0, source = 0;
  uint64_t width = 0, rows = 1, slices = 1;
  uint64_t target_pitch = 0, target_slice = 0;
  uint64_t source_pitch = 0, source_slice = 0;
  uint64_t extent(uint64_t pitch, uint64_t slice) const { return (slices - 1) * slice + (rows - 1) * pitch + width; }
};

struct Fill {
  uint64_t address = 0;
  uint64_t pitch = 0;  // bytes from row to row
  uint32_t value = 0;
  uint32_t element = 1;  // bytes: 1, 2 or 4
  uint64_t width = 0;    // elements
  uint64_t height = 1;
};

enum class Direction { kToDevice, kToHost, kOnDevice, kOnHost };
enum class Expect { kDevice, kAny };
enum class Timing { kBlocking, kAsynchronous };

struct Route {
  Direction direction = Direction::kOnHost;
  bool source_checked = false;  // the driver knows the memory: its mapping is checked when the copy runs
  bool target_checked = false;
  bool pageable = false;
  bool stage = false;  // takes the source's content at submission
  bool wait = false;   // the call returns when the copy is done
};

// Which device's access each side needs: the copying context's, or for the peer variants those of the contexts that the caller names.
struct Sides {
  int source = -1;  // -1: the copying context's
  int target = -1;
};

CUresult copy(const Transfer& transfer, Expect source_is, Expect target_is, CUstream stream, Default null_means, Timing timing,
              Sides sides = {});
CUresult fill(const Fill& request, CUstream stream, Default null_means, Timing timing);
// For the nodes of a graph.
// CUDA_ERROR_INVALID_VALUE for a device address without memory: the driver looks when a node is made. `device`: of the node's context.
CUresult make_copy(const Transfer& transfer, Expect source_is, Expect target_is, int device, WorkPtr* work);
WorkPtr make_fill(const Fill& fill);
CUresult make_memops(unsigned count, const CUstreamBatchMemOpParams* list, unsigned flags, WorkPtr* work);
// cuMemcpy2D and 3D: the transfer that a descriptor means.
CUresult to_transfer(const CUDA_MEMCPY3D& description, Transfer* transfer);

}  // namespace simgpu
