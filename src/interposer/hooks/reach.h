// Copies between GPUs. The driver copies plain memory of two GPUs, or by a context of another GPU, whether peer access is enabled or not;
// virtual memory, which ours is to it, only where the GPU of the copying context may use it: else the call fails with "invalid value" and
// has done nothing (measured). Then the memory that it names is opened to the process's other GPUs, for good, and the call is made again.
// Where GPUs cannot reach each other, a copy outside of captures goes through the peer variant, which the driver stages.
//
// Memory that another process handed over by IPC is opened likewise. Memory of pools and the program's own virtual memory is refused
// natively, too, and stays as it is.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/hooks/addresses.h"

namespace nvshare::interposer {

class Process;

using namespace cuda;

// The program uses several GPUs, and some of the addresses are plain memory of ours or imported.
bool names_several_gpus(Process& process, const Addresses& named);
// Opens what is ours among them to the GPUs of this process; true: something was not open, so that the call may be made again.
bool reach_each_other(Process& process, const Addresses& named);

// Some memory was opened so, or imported: fills of it are to be looked at.
inline constinit std::atomic<bool> opened_to_others{false};
// Peer access is a context's: once there is some, and contexts beside the primary ones, fills are to be looked at, too.
inline constinit std::atomic<bool> peers_enabled{false}, contexts_made{false};
inline void look_at_fills_of_peers() {
  if (peers_enabled.load(std::memory_order_relaxed) && contexts_made.load(std::memory_order_relaxed))
    opened_to_others.store(true, std::memory_order_relaxed);
}
// A fill wants access also of plain memory, which a copy may have opened without the program's knowing (measured: 1 where peer access is
// not enabled); and of memory that was opened by IPC, which only the context has that opened it (measured: 1 from any other, where copies
// are made).
bool fill_lacks_access(Process& process, CUdeviceptr address, CUstream stream);
// It is imported, and the stream's GPU has access by a copy alone.
bool opened_by_a_copy(Process& process, CUdeviceptr address, CUstream stream);

// Whether both lie on GPUs that cannot reach each other.
bool lie_apart(Process& process, CUdeviceptr one, CUdeviceptr other);

// The copy through the peer variant, where that may help; false: it does not. The caller is inside the gate. `stream` is null for a
// synchronous copy.
bool copy_by_peers(Process& process, CUdeviceptr to, CUdeviceptr from, size_t bytes, const CUstream* stream, bool per_thread,
                   CUresult* result);
bool copy_by_peers(Process& process, const CUDA_MEMCPY2D& copy, const CUstream* stream, bool per_thread, CUresult* result);
bool copy_by_peers(Process& process, const CUDA_MEMCPY3D& copy, const CUstream* stream, bool per_thread, CUresult* result);
// With the contexts of its memory in place of those that it names, where GPUs cannot reach each other.
bool copy_by_peers(Process& process, const CUDA_MEMCPY3D_PEER& copy, const CUstream* stream, bool per_thread, CUresult* result);

}  // namespace nvshare::interposer
