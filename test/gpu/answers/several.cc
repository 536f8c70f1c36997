// Two GPUs; handles of a process without a context; pieces that a driver maps.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "answers/answers.h"
#include "answers/structs.h"

namespace answers {
namespace {

constexpr size_t kBytes = 4 * kMiB;

Address plain_on(int device, size_t bytes) {
  use(device);
  Address address = 0;
  must("cuMemAlloc_v2", &address, bytes);
  return address;
}

Copy2D rows_2d(Address to, size_t to_pitch, Address from, size_t from_pitch, size_t width, size_t height) {
  Copy2D copy{};
  copy.from_type = copy.to_type = kDeviceMemory;
  copy.from_device = from;
  copy.from_pitch = from_pitch;
  copy.to_device = to;
  copy.to_pitch = to_pitch;
  copy.width = width;
  copy.height = height;
  return copy;
}

struct Pair {
  Address here = 0, there = 0;  // 4 MiB on GPU 0 and on GPU 1
  Address small_here = 0, small_there = 0;
  Context context[2] = {};
};

// `what` copies GPU 0's 4 MiB, or a part, to GPU 1's; the first `bytes` are to arrive.
template <typename Copy>
void try_copy(const Pair& pair, const char* what, size_t bytes, Copy copy) {
  static uint32_t seed = 100;
  ++seed;
  must("cuCtxSetCurrent", pair.context[0]);
  write_pattern(pair.here, kBytes, seed);
  const Result result = copy();
  must("cuCtxSetCurrent", pair.context[0]);
  const Result done = call("cuCtxSynchronize");
  say("%s: %d %d", what, result, done);
  if (result != 0) return;
  must("cuCtxSetCurrent", pair.context[1]);
  must("cuCtxSynchronize");
  std::vector<unsigned char> source(bytes), target(bytes);
  must("cuMemcpyDtoH_v2", static_cast<void*>(target.data()), pair.there, bytes);
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemcpyDtoH_v2", static_cast<void*>(source.data()), pair.here, bytes);
  say("%s, arrived: %d", what, source == target);
}

Pair make_pair() {
  Pair pair;
  pair.here = plain_on(0, kBytes);
  pair.small_here = plain_on(0, 1000);
  pair.there = plain_on(1, kBytes);
  pair.small_there = plain_on(1, 1000);
  pair.context[1] = use(1);
  pair.context[0] = use(0);
  return pair;
}

void every_copy(const Pair& pair, Stream stream) {
  const auto attempt = [&](const char* what, size_t bytes, auto copy) { try_copy(pair, what, bytes, copy); };
  attempt("cuMemcpy", kBytes, [&] { return call("cuMemcpy", pair.there, pair.here, kBytes); });
  attempt("cuMemcpy_ptds", kBytes, [&] { return call("cuMemcpy_ptds", pair.there, pair.here, kBytes); });
  attempt("cuMemcpyAsync", kBytes, [&] { return call("cuMemcpyAsync", pair.there, pair.here, kBytes, stream); });
  attempt("cuMemcpyAsync_ptsz", kBytes, [&] { return call("cuMemcpyAsync_ptsz", pair.there, pair.here, kBytes, stream); });
  attempt("cuMemcpyDtoD", kBytes, [&] { return call("cuMemcpyDtoD_v2", pair.there, pair.here, kBytes); });
  attempt("cuMemcpyDtoD_ptds", kBytes, [&] { return call("cuMemcpyDtoD_v2_ptds", pair.there, pair.here, kBytes); });
  attempt("cuMemcpyDtoDAsync", kBytes, [&] { return call("cuMemcpyDtoDAsync_v2", pair.there, pair.here, kBytes, stream); });
  attempt("cuMemcpyDtoDAsync_ptsz", kBytes, [&] { return call("cuMemcpyDtoDAsync_v2_ptsz", pair.there, pair.here, kBytes, stream); });
  attempt("cuMemcpyPeer", kBytes, [&] { return call("cuMemcpyPeer", pair.there, pair.context[1], pair.here, pair.context[0], kBytes); });
  attempt("cuMemcpyPeerAsync", kBytes,
          [&] { return call("cuMemcpyPeerAsync", pair.there, pair.context[1], pair.here, pair.context[0], kBytes, stream); });
  const Copy2D flat = rows_2d(pair.there, 1024, pair.here, 1024, 1024, 1024);
  attempt("cuMemcpy2D", kMiB, [&] { return call("cuMemcpy2D_v2", &flat); });
  attempt("cuMemcpy2D_ptds", kMiB, [&] { return call("cuMemcpy2D_v2_ptds", &flat); });
  attempt("cuMemcpy2DUnaligned", kMiB, [&] { return call("cuMemcpy2DUnaligned_v2", &flat); });
  attempt("cuMemcpy2DAsync", kMiB, [&] { return call("cuMemcpy2DAsync_v2", &flat, stream); });
  attempt("cuMemcpy2DAsync_ptsz", kMiB, [&] { return call("cuMemcpy2DAsync_v2_ptsz", &flat, stream); });
  Copy2D unified = flat;
  unified.from_type = unified.to_type = kUnifiedMemory;
  attempt("cuMemcpy2DAsync, unified", kMiB, [&] { return call("cuMemcpy2DAsync_v2", &unified, stream); });
  Copy3D deep = rows(pair.there, 512, pair.here, 512, 512, 16);
  deep.depth = 64;
  attempt("cuMemcpy3D", 512 * 16 * 64, [&] { return call("cuMemcpy3D_v2", &deep); });
  attempt("cuMemcpy3D_ptds", 512 * 16 * 64, [&] { return call("cuMemcpy3D_v2_ptds", &deep); });
  attempt("cuMemcpy3DAsync", 512 * 16 * 64, [&] { return call("cuMemcpy3DAsync_v2", &deep, stream); });
  attempt("cuMemcpy3DAsync_ptsz", 512 * 16 * 64, [&] { return call("cuMemcpy3DAsync_v2_ptsz", &deep, stream); });
  Copy3D peer = deep;
  peer.from.reserved = pair.context[0];
  peer.to.reserved = pair.context[1];
  attempt("cuMemcpy3DPeer", 512 * 16 * 64, [&] { return call("cuMemcpy3DPeer", &peer); });
  attempt("cuMemcpy3DPeerAsync", 512 * 16 * 64, [&] { return call("cuMemcpy3DPeerAsync", &peer, stream); });
}

// The contexts of the peer variant are not looked at.
void attempt_swapped(const Pair& pair, Stream stream) {
  try_copy(pair, "cuMemcpyPeerAsync, contexts swapped", kBytes,
           [&] { return call("cuMemcpyPeerAsync", pair.there, pair.context[0], pair.here, pair.context[1], kBytes, stream); });
}

// A fill and every copy, in a stream of GPU 0, which stays.
Stream fill_and_copy(const Pair& pair) {
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  // Unlike copies, a fill wants access.
  say_result("fill of another GPU's memory", call("cuMemsetD8Async", pair.there, static_cast<unsigned char>(4), kMiB, stream));
  every_copy(pair, stream);
  attempt_swapped(pair, stream);
  return stream;
}

struct CopyAttributes {
  int source_access;  // 1: in stream order
  Location source_hint, target_hint;
  unsigned flags;
};

Result batch_copy(Address* to, Address* from, size_t* sizes, size_t count, Stream stream) {
  CopyAttributes attributes{1, {}, {}, 0};
  size_t index = 0;
  return call("cuMemcpyBatchAsync_v2", to, from, sizes, count, &attributes, &index, size_t{1}, stream);
}

}  // namespace

// Plain memory of two GPUs, peer access never enabled.
void two_gpus() {
  const Pair pair = make_pair();
  settle();
  const Stream stream = fill_and_copy(pair);
  Address to[2] = {pair.there, pair.there + kMiB};
  Address from[2] = {pair.here, pair.here + kMiB};
  size_t sizes[2] = {kMiB, kMiB};
  try_copy(pair, "cuMemcpyBatchAsync", 2 * kMiB, [&] { return batch_copy(to, from, sizes, 2, stream); });
  // A stream and a context of the other GPU; memory of one GPU by another's context.
  Stream other = nullptr;
  must("cuCtxSetCurrent", pair.context[1]);
  must("cuStreamCreate", &other, kNonBlocking);
  try_copy(pair, "by the target's stream", kBytes, [&] {
    must("cuCtxSetCurrent", pair.context[1]);
    const Result result = call("cuMemcpyAsync", pair.there, pair.here, kBytes, other);
    must("cuStreamSynchronize", other);
    return result;
  });
  must("cuCtxSetCurrent", pair.context[1]);
  std::vector<unsigned char> host(kBytes, 3);
  say_result("host to another GPU's memory", call("cuMemcpyHtoDAsync_v2", pair.here, static_cast<const void*>(host.data()), kBytes, other));
  say_result("and done", call("cuStreamSynchronize", other));
  say_result("another GPU's memory to the host", call("cuMemcpyDtoHAsync_v2", static_cast<void*>(host.data()), pair.here, kBytes, other));
  say_result("and done", call("cuStreamSynchronize", other));
  say("it is there: %d", host[0] == 3 && host[kBytes - 1] == 3);
  say_result("within another GPU's memory", call("cuMemcpyDtoDAsync_v2", pair.here, pair.here + kMiB, kMiB, other));
  say_result("and done", call("cuStreamSynchronize", other));
  // Captured.
  must("cuCtxSetCurrent", pair.context[0]);
  Graph graph = nullptr;
  say_result("capture", call("cuStreamBeginCapture_v2", stream, 0));
  say_result("copy in a capture", call("cuMemcpyAsync", pair.there, pair.here, kBytes, stream));
  say_result("end of capture", call("cuStreamEndCapture", stream, &graph));
  Executable executable = nullptr;
  say_result("instantiate", call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
  if (executable != nullptr) try_copy(pair, "launch", kBytes, [&] { return call("cuGraphLaunch", executable, stream); });
  // The same with access.
  int can = 0;
  must("cuDeviceCanAccessPeer", &can, 0, 1);
  if (can == 0) return;
  must("cuCtxSetCurrent", pair.context[0]);
  say_result("enable", call("cuCtxEnablePeerAccess", pair.context[1], 0u));
  try_copy(pair, "with access: cuMemcpyAsync", kBytes, [&] { return call("cuMemcpyAsync", pair.there, pair.here, kBytes, stream); });
  must("cuCtxSetCurrent", pair.context[0]);
  say_result("disable", call("cuCtxDisablePeerAccess", pair.context[1]));
  try_copy(pair, "without again: cuMemcpyAsync", kBytes, [&] { return call("cuMemcpyAsync", pair.there, pair.here, kBytes, stream); });
  // Also after copies, on a stream of one GPU and by the other.
  must("cuCtxSetCurrent", pair.context[0]);
  say_result("fill after copies", call("cuMemsetD8_v2", pair.there, static_cast<unsigned char>(4), kMiB));
  say_result("fill after copies, on a stream", call("cuMemsetD2D32Async", pair.there, kPage, 4u, size_t{16}, size_t{2}, stream));
  say_result("fill of nothing", call("cuMemsetD16_v2", pair.there, static_cast<unsigned short>(4), size_t{0}));
  say_result("on the memory's own GPU's stream", call("cuMemsetD8Async", pair.there, static_cast<unsigned char>(4), kMiB, other));
  say_result("of its own memory", call("cuMemsetD8_v2", pair.here, static_cast<unsigned char>(4), kMiB));
}

// The same where no GPU can use the other's memory: copies go through the host. Elsewhere they answer the same.
void two_gpus_apart() {
  const Pair pair = make_pair();
  settle();
  fill_and_copy(pair);
  must("cuCtxSetCurrent", pair.context[0]);
  try_copy(pair, "small", 1000, [&] { return call("cuMemcpyDtoD_v2", pair.small_there, pair.small_here, size_t{1000}); });
  must("cuCtxSetCurrent", pair.context[0]);
  say_result("fill after copies", call("cuMemsetD8_v2", pair.there, static_cast<unsigned char>(4), kMiB));
  say_result("of its own memory", call("cuMemsetD8_v2", pair.here, static_cast<unsigned char>(4), kMiB));
  must("cuCtxSynchronize");
}

void two_gpus_graphs() {
  const Pair pair = make_pair();
  settle();
  Graph graph = nullptr;
  must("cuGraphCreate", &graph, 0u);
  Node node = nullptr;
  const Copy3D copy = line(pair.there, pair.here, kBytes);
  say_result("add a copy",
             call("cuGraphAddMemcpyNode", &node, graph, static_cast<const Node*>(nullptr), size_t{0}, &copy, pair.context[0]));
  if (node == nullptr) return;
  const Copy3D part = line(pair.there, pair.here, kMiB);
  say_result("change it", call("cuGraphMemcpyNodeSetParams", node, &part));
  Executable executable = nullptr;
  say_result("instantiate", call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
  if (executable == nullptr) return;
  try_copy(pair, "launch", kMiB, [&] { return call("cuGraphLaunch", executable, Stream{nullptr}); });
  say_result("change it again", call("cuGraphExecMemcpyNodeSetParams", executable, node, &copy, pair.context[0]));
  try_copy(pair, "launch again", kBytes, [&] { return call("cuGraphLaunch", executable, Stream{nullptr}); });
}

namespace {

// What another GPU's context may do to memory here: natively it copies plain memory, and not a pool's.
void reach_from(Context there, Address target, const char* what) {
  must("cuCtxSetCurrent", there);
  const std::vector<unsigned char> host(512, 9);
  say("%s, from the host by the other GPU", what);
  say_result("copy", call("cuMemcpyHtoD_v2", target, static_cast<const void*>(host.data()), host.size()));
  say_result("done", call("cuCtxSynchronize"));
}

}  // namespace

// A copy opens plain memory to another GPU. Memory of pools that was made, or is made, beside it or from it stays closed.
void two_gpus_pools() {
  const Pair pair = make_pair();
  settle();
  must("cuCtxSetCurrent", pair.context[0]);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  Address before = 0, after = 0, large = 0, of_pool = 0;
  must("cuMemAllocAsync", &before, size_t{1000}, stream);
  must("cuStreamSynchronize", stream);
  reach_from(pair.context[1], pair.small_here, "plain");
  reach_from(pair.context[1], before, "of a pool, made before");
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemAllocAsync", &after, size_t{1000}, stream);
  must("cuStreamSynchronize", stream);
  reach_from(pair.context[1], after, "of a pool, made afterwards");
  // A pool's memory where plain memory was, which was open.
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemAlloc_v2", &large, kBytes);
  reach_from(pair.context[1], large, "large");
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemFree_v2", large);
  must("cuMemAllocAsync", &of_pool, kBytes, stream);
  must("cuStreamSynchronize", stream);
  reach_from(pair.context[1], of_pool, "of a pool, as large");
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemAlloc_v2", &large, 2 * kBytes);
  reach_from(pair.context[1], large, "larger");
  must("cuCtxSetCurrent", pair.context[0]);
  must("cuMemFreeAsync", large, stream);
  must("cuMemAllocAsync", &of_pool, 2 * kBytes, stream);
  must("cuStreamSynchronize", stream);
  reach_from(pair.context[1], of_pool, "of a pool, after a free in stream order");
}

// Memory of GPU 0's pool, which GPU 1 may not use, in rows by GPU 1's stream.
void two_gpus_pools_in_rows() {
  const Pair pair = make_pair();
  Stream stream = nullptr;
  must("cuCtxSetCurrent", pair.context[1]);
  must("cuStreamCreate", &stream, kNonBlocking);
  must("cuCtxSetCurrent", pair.context[0]);
  Address pooled = 0;
  must("cuMemAllocAsync", &pooled, kBytes, Stream{nullptr});
  must("cuCtxSynchronize");
  for (const bool to : {true, false}) {
    const Address target = to ? pooled : pair.there;
    const Address source = to ? pair.there : pooled;
    const Copy2D flat = rows_2d(target, 1024, source, 1024, 512, 16);
    Copy3D deep = rows(target, 512, source, 512, 512, 16);
    deep.depth = 4;
    for (const Context current : pair.context) {
      must("cuCtxSetCurrent", current);
      say_result("cuMemcpyAsync", call("cuMemcpyAsync", target, source, kBytes, stream));
      say_result("cuMemcpy2DAsync", call("cuMemcpy2DAsync_v2", &flat, stream));
      say_result("cuMemcpy3DAsync", call("cuMemcpy3DAsync_v2", &deep, stream));
    }
  }
  must("cuCtxSynchronize");
}

// Peer access is the context's that asked for it, not its GPU's.
void two_gpus_peers_of_contexts() {
  const Pair pair = make_pair();
  must("cuCtxSetCurrent", pair.context[0]);
  say_result("enable", call("cuCtxEnablePeerAccess", pair.context[1], 0u));
  const auto look = [&] {
    Address base = 0;
    size_t bytes = 0;
    say_result("fill", call("cuMemsetD8Async", pair.there, static_cast<unsigned char>(1), size_t{64}, Stream{nullptr}));
    say_result("range", call("cuMemGetAddressRange_v2", &base, &bytes, pair.there));
    say_result("device pointer", call("cuPointerGetAttribute", static_cast<void*>(&base), 3, pair.there));
  };
  look();
  Context other = nullptr;
  must("cuCtxCreate_v2", &other, 0u, 0);
  look();
  must("cuCtxDestroy_v2", other);
  must("cuCtxSetCurrent", pair.context[0]);
  look();
  must("cuCtxSynchronize");  // a fill under way would fault
  say_result("disable", call("cuCtxDisablePeerAccess", pair.context[1]));
  look();
  must("cuCtxSynchronize");
}

// A parent makes memory and hands it to a child; only the child has a context.
void handles_without_context() {
  constexpr int kDescriptor = 1;
  const AllocationProperties properties = on_gpu(0, kDescriptor);
  Handle handle = 0;
  say_result("create", call("cuMemCreate", &handle, size_t{2 * kPage}, &properties, 0ull));
  Address base = 0;
  say_result("reserve", call("cuMemAddressReserve", &base, size_t{2 * kPage}, size_t{0}, Address{0}, 0ull));
  say_result("map", call("cuMemMap", base, size_t{2 * kPage}, size_t{0}, handle, 0ull));
  const Access access{{1, 0}, 3};
  say_result("set access", call("cuMemSetAccess", base, size_t{2 * kPage}, &access, size_t{1}));
  int fd = -1, second = -1;
  say_result("export", call("cuMemExportToShareableHandle", static_cast<void*>(&fd), handle, kDescriptor, 0ull));
  say_result("export again", call("cuMemExportToShareableHandle", static_cast<void*>(&second), handle, kDescriptor, 0ull));
  say("descriptors: %d", fd >= 0 && second >= 0);
  Handle imported = 0;
  say_result("import", call("cuMemImportFromShareableHandle", &imported, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)), kDescriptor));
  // From here on with a context: what both names say is one memory.
  use(0);
  Address other = 0;
  must("cuMemAddressReserve", &other, size_t{2 * kPage}, size_t{0}, Address{0}, 0ull);
  say_result("map the import", call("cuMemMap", other, size_t{2 * kPage}, size_t{0}, imported, 0ull));
  say_result("set access", call("cuMemSetAccess", other, size_t{2 * kPage}, &access, size_t{1}));
  must("cuMemsetD8_v2", base, static_cast<unsigned char>(42), size_t{2 * kPage});
  must("cuCtxSynchronize");
  unsigned char byte = 0;
  must("cuMemcpyDtoH_v2", static_cast<void*>(&byte), other + kPage, size_t{1});
  say("one memory: %d", byte);
  say_result("unmap", call("cuMemUnmap", other, size_t{2 * kPage}));
  say_result("unmap", call("cuMemUnmap", base, size_t{2 * kPage}));
  say_result("release", call("cuMemRelease", imported));
  say_result("release", call("cuMemRelease", handle));
}

// A driver maps small allocations in pieces of 2 MiB, and none of them crosses two.
void small_mappings() {
  use(0);
  for (const size_t bytes : {size_t{719808}, size_t{300000}, size_t{1} << 20}) {
    Address memory[9] = {};
    int pieces = 0;
    for (Address& address : memory) {
      size_t mapped = 0;
      Address base = 0;
      must("cuMemAlloc_v2", &address, bytes);
      must("cuPointerGetAttribute", static_cast<void*>(&mapped), 18, address);
      must("cuPointerGetAttribute", static_cast<void*>(&base), 19, address);
      pieces += mapped == size_t{2} << 20 && base % mapped == 0 && address - base <= mapped - bytes ? 1 : 0;
    }
    say("%zu bytes: %d in one piece", bytes, pieces);
    for (const Address address : memory) must("cuMemFree_v2", address);
  }
}

// Of a pool, in pieces of 32 MiB.
void pool_mappings() {
  use(0);
  constexpr size_t kPiece = 32 * kMiB;
  for (const size_t bytes : {size_t{719808}, size_t{6 * kMiB}}) {
    Address memory[5] = {};
    int pieces = 0;
    for (Address& address : memory) {
      size_t mapped = 0;
      Address base = 0;
      must("cuMemAllocAsync", &address, bytes, Stream{nullptr});
      must("cuPointerGetAttribute", static_cast<void*>(&mapped), 18, address);
      must("cuPointerGetAttribute", static_cast<void*>(&base), 19, address);
      pieces += mapped == kPiece && address - base <= mapped - bytes ? 1 : 0;
    }
    say("%zu bytes: %d in one piece", bytes, pieces);
    for (const Address address : memory) must("cuMemFreeAsync", address, Stream{nullptr});
    must("cuCtxSynchronize");
  }
}

}  // namespace answers
