// Blocks whose addresses we reserve and whose chunks have physical memory of ours, made and mapped when it is to be there.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backend.h"
#include "interposer/memory/backends/block_access.h"

namespace nvshare::interposer {

class Device;

class VmmBackend final : public Backend {
 public:
  VmmBackend(Device& device, BlockAccess& access) : device_(device), access_(access) {}

  cuda::CUresult reserve(Block& block, const BlockOrder& order) override;
  cuda::CUresult give_back(Block& block) override;
  cuda::CUresult map(Block& block, uint32_t index) override;
  void unmap(Block& block, uint32_t index) override;
  cuda::CUresult start_in(const Piece& piece, cuda::CUstream stream, bool* copying) override;
  cuda::CUresult start_out(const Piece& piece, cuda::CUstream stream) override;

 private:
  // What an unmapping left that failed goes.
  cuda::CUresult take_left(Block& block, uint32_t index);

  Device& device_;
  BlockAccess& access_;
};

}  // namespace nvshare::interposer
