// What the memory at an address is to a driver, and who may use it.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/hooks/addresses.h"

namespace nvshare::interposer {

class Process;

using namespace cuda;

// The context in which plain memory of ours lies, or null.
CUcontext plain_context(Process& process, CUdeviceptr address);

// The current context's GPU may use an allocation of that GPU: its own, and of others what peer access opens, or for memory of a pool what
// that pool's access does (measured). True where no context is current.
bool may_use(Process& process, int ordinal, CUdeviceptr base, bool of_pool);
// The same of the program's virtual memory, of which also its own GPU has no access before the program gives it (recorded).
bool may_use_virtual(Process& process, CUdeviceptr address);

// Of an executable graph's copy in a thread without a context: a driver refuses plain memory on one side and memory without a context of
// its own, virtual or a pool's, on the other (measured). To it, ours is virtual as well.
bool mixes_plain_and_other(Process& process, const Addresses& named);

// What memory is to a driver that looks at a graph's copy: it has a context of its own (plain, managed), or none (of a pool, virtual). Not
// known: host memory, an array, memory that was freed.
enum class MemoryKind : uint8_t { kUnknown, kOfContext, kOfNone };
MemoryKind kind_of(Process& process, CUmemorytype type, CUdeviceptr address);
// Memory of a pool, or virtual, ours or not.
bool has_no_context(Process& process, CUmemorytype type, CUdeviceptr address);
// Also of memory that the driver alone knows, such as that of pools that may be shared.
MemoryKind kind_by_driver(Process& process, CUmemorytype type, CUdeviceptr address);

// A thread without a context may name them: plain memory, also imported, and none that has no context of its own (of a pool, virtual).
bool need_no_context(Process& process, const Addresses& named);

}  // namespace nvshare::interposer
