// cuGetProcAddress: the driver answers, and where it answers with a function that we hook, the program gets the hook.
//
// Which hook is told by the address: the driver hands out the address of one of its exported symbols (measured over all requests of
// PyTorch, JAX and CuPy), so the right version and the right per-thread variant come out by themselves. An export that our list lacks is
// looked at by its name (unknown_calls.h). Should a driver hand out an address that belongs to no export, the hook is chosen as the
// documentation says the driver chooses: of the versions of that function that exist at the CUDA version asked for, the newest; its
// per-thread variant if the flags ask for that and there is one.
#pragma once

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

// The slot of the hooked function that a request for (symbol, cuda_version, flags) means, or kNoSlot. Needs no driver.
size_t slot_of_request(const char* symbol, int cuda_version, cuuint64_t flags);

// What to hand out in place of `address`, which the driver answered: a hook, or `address` itself.
void* replace_proc_address(void* address, const char* symbol, int cuda_version, cuuint64_t flags);

}  // namespace nvshare::interposer
