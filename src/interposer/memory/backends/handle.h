// Blocks behind the handles that the program makes by cuMemCreate: one driver handle each, which comes and goes as a whole though it is
// copied in parts. Where the program has it mapped is ProgramVmm's concern.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backend.h"

namespace nvshare::interposer {

class Device;
class Blocks;

class HandleBackend final : public Backend {
 public:
  HandleBackend(Device& device, Blocks& blocks) : device_(device), blocks_(blocks) {}

  cuda::CUresult reserve(Block& block, const BlockOrder& order) override;
  cuda::CUresult give_back(Block& block) override;
  cuda::CUresult map(Block& block, uint32_t index) override;
  void unmap(Block& block, uint32_t index) override;
  cuda::CUresult start_in(const Piece& piece, cuda::CUstream stream, bool* copying) override;
  cuda::CUresult start_out(const Piece& piece, cuda::CUstream stream) override;

 private:
  Device& device_;
  Blocks& blocks_;
};

}  // namespace nvshare::interposer
