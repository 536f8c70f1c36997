// Blocks of managed memory: the backend `managed`, and the program's own (of_program), which the host may touch at any time; the GPU only
// in a turn. They come and go by prefetches. Their pages move by themselves if the program does that, so `resident` is the most that may be
// on the GPU.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backend.h"

namespace nvshare::interposer {

class Device;

class ManagedBackend final : public Backend {
 public:
  explicit ManagedBackend(Device& device) : device_(device) {}

  cuda::CUresult reserve(Block& block, const BlockOrder& order) override;
  cuda::CUresult give_back(Block& block) override;
  // Unless it is better left to the program's own accesses.
  cuda::CUresult start_in(const Piece& piece, cuda::CUstream stream, bool* copying) override;
  cuda::CUresult start_out(const Piece& piece, cuda::CUstream stream) override;

  // What is beyond what the books count (Block::demand): the driver is to take it off the GPU, in stream order.
  void push_demand_out(cuda::CUstream stream);

 private:
  Device& device_;
};

}  // namespace nvshare::interposer
