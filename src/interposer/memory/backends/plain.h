// Blocks that are the driver's own allocations: counted, never moved. What Backend does of itself is all that happens to them in between.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backend.h"

namespace nvshare::interposer {

class PlainBackend final : public Backend {
 public:
  cuda::CUresult reserve(Block& block, const BlockOrder& order) override;
  cuda::CUresult give_back(Block& block) override;
};

// Of what goes with its context: the address may be somebody else's by now.
cuda::CUresult free_unless_gone(const Block& block);

}  // namespace nvshare::interposer
