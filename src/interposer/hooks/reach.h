// Copies between GPUs. The driver copies plain memory of two GPUs, or by a context of another GPU, whether peer access is enabled or not;
// virtual memory, which ours is to it, only where the GPU of the copying context may use it: else the call fails with "invalid value" and
// has done nothing (measured). Then the memory that it names is opened to the process's other GPUs, for good, and the call is made again.
// Where GPUs cannot reach each other, a copy outside of captures goes through the peer variant, which the driver stages.
//
// So is memory that another process handed over by IPC. Memory of pools and the program's own virtual memory is refused natively, too, and
// stays as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/handles/program_vmm.h"

namespace nvshare::interposer {

class Process;

using namespace cuda;

using Addresses = std::vector<CUdeviceptr>;

// ---- the addresses that a call's arguments name ----
inline void add_named(Addresses& named, CUdeviceptr address) { named.push_back(address); }
template <typename Description>
void add_both_sides(Addresses& named, const Description* copy) {
  if (copy == nullptr) return;
  const bool from_host = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = copy->dstMemoryType == CU_MEMORYTYPE_HOST;
  named.push_back(from_host ? reinterpret_cast<uintptr_t>(copy->srcHost) : copy->srcDevice);
  named.push_back(to_host ? reinterpret_cast<uintptr_t>(copy->dstHost) : copy->dstDevice);
}
inline void add_named(Addresses& named, const CUDA_MEMCPY2D* copy) { add_both_sides(named, copy); }
inline void add_named(Addresses& named, const CUDA_MEMCPY3D* copy) { add_both_sides(named, copy); }
inline void add_named(Addresses& named, const CUDA_MEMCPY3D_PEER* copy) { add_both_sides(named, copy); }
// Of graphs: there a fill of plain memory wants no access, as a copy (measured).
inline void add_named(Addresses& named, const CUDA_MEMSET_NODE_PARAMS* fill) {
  if (fill != nullptr) named.push_back(fill->dst);
}
inline void add_named(Addresses& named, CUgraphNodeParams* node) {
  if (node == nullptr) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    add_both_sides(named, &reinterpret_cast<const CUDA_MEMCPY_NODE_PARAMS*>(node->rest)->copyParams);
  } else if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    add_named(named, reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(node->rest));
  }
}
template <typename Other>
void add_named(Addresses&, Other) {}

template <typename... Arguments>
Addresses named_by(Arguments... arguments) {
  Addresses named;
  (add_named(named, arguments), ...);
  return named;
}
// cuMemcpyBatchAsync
template <typename... Rest>
Addresses named_by(CUdeviceptr* targets, CUdeviceptr* sources, size_t* /*sizes*/, size_t count, Rest...) {
  Addresses named;
  if (targets == nullptr || sources == nullptr) return named;
  named.insert(named.end(), targets, targets + count);
  named.insert(named.end(), sources, sources + count);
  return named;
}
// cuMemcpy3DBatchAsync
template <typename... Rest>
Addresses named_by(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, Rest...) {
  Addresses named;
  for (size_t i = 0; copies != nullptr && i < count; ++i) {
    for (const CUmemcpy3DOperand* each : {&copies[i].src, &copies[i].dst}) {
      if (each->type == CU_MEMCPY_OPERAND_TYPE_POINTER) named.push_back(each->op.ptr.ptr);
    }
  }
  return named;
}

// ---- what is done about it ----
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
// Also of memory that the driver alone knows, such as that of pools that may be shared.
MemoryKind kind_by_driver(Process& process, CUmemorytype type, CUdeviceptr address);

// A thread without a context may name them: plain memory, also imported, and none that has no context of its own (of a pool, virtual).
bool need_no_context(Process& process, const Addresses& named);

// A context of that GPU is current to the calling thread while this lives; false: the thread has one already, or there is none.
class BorrowedContext {
 public:
  BorrowedContext(Process& process, int ordinal);
  ~BorrowedContext();
  BorrowedContext(const BorrowedContext&) = delete;
  BorrowedContext& operator=(const BorrowedContext&) = delete;
  explicit operator bool() const { return context_ != nullptr; }

 private:
  Process& process_;
  CUcontext context_ = nullptr;
};
// GPUs (bits) on which the program has a context.
uint32_t gpus_in_use(Process& process);

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
