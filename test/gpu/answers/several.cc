// Two GPUs; handles of a process without a context; contexts that are gone.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  // Unlike copies, a fill wants access.
  say_result("fill of another GPU's memory", call("cuMemsetD8Async", pair.there, static_cast<unsigned char>(4), kMiB, stream));
  every_copy(pair, stream);
  attempt_swapped(pair, stream);
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

namespace {

// What makes memory, or names some of a context that is there, in a thread whose current context is gone.
void allocate_without_context(const char* when, Address kept, Address pooled) {
  say("%s", when);
  Address address = 0;
  size_t pitch = 0, free_bytes = 0, total_bytes = 0;
  void* array = nullptr;
  struct {
    size_t width, height;
    int format;
    unsigned channels;
  } flat{64, 4, 1, 1};
  struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
  } solid{64, 4, 2, 1, 1, 0};
  say_result("allocate", call("cuMemAlloc_v2", &address, kBytes));
  say_result("allocate a row", call("cuMemAllocPitch_v2", &address, &pitch, size_t{100}, size_t{3}, 4u));
  say_result("allocate in order", call("cuMemAllocAsync", &address, kBytes, static_cast<void*>(nullptr)));
  say_result("allocate managed", call("cuMemAllocManaged", &address, kBytes, 1u));
  say_result("make an array", call("cuArrayCreate_v2", &array, static_cast<const void*>(&flat)));
  say_result("make one of three dimensions", call("cuArray3DCreate_v2", &array, static_cast<const void*>(&solid)));
  say_result("how much is free", call("cuMemGetInfo_v2", &free_bytes, &total_bytes));
  unsigned char handle[64] = {};
  unsigned type = 0;
  say_result("the range of other memory", call("cuMemGetAddressRange_v2", &address, &free_bytes, kept));
  say_result("the range of a pool's", call("cuMemGetAddressRange_v2", &address, &free_bytes, pooled));
  say_result("its type", call("cuPointerGetAttribute", static_cast<void*>(&type), 2, kept));
  say_result("hand it over", call("cuIpcGetMemHandle", static_cast<void*>(handle), kept));
  say_result("hand nothing over", call("cuIpcGetMemHandle", static_cast<void*>(handle), Address{0}));
  say_result("free it in order", call("cuMemFreeAsync", pooled, static_cast<void*>(nullptr)));
  say_result("free it", call("cuMemFree_v2", kept));
  say_result("free nothing", call("cuMemFree_v2", Address{0}));
}

}  // namespace

// A context stays on a thread's stack when it is destroyed by another thread, and a primary one when it is reset or released.
void gone_contexts() {
  Context made = nullptr, stays = nullptr;
  Address address = 0, kept = 0, pooled = 0;
  must("cuCtxCreate_v2", &stays, 0u, 0);
  must("cuMemAlloc_v2", &kept, kBytes);
  must("cuMemAllocAsync", &pooled, kBytes, static_cast<void*>(nullptr));
  must("cuCtxCreate_v2", &made, 0u, 0);
  must("cuMemAlloc_v2", &address, kBytes);
  std::thread([&] { must("cuCtxDestroy_v2", made); }).join();
  allocate_without_context("destroyed by another thread", kept, pooled);
  use(0);
  must("cuMemAlloc_v2", &address, kBytes);
  must("cuDevicePrimaryCtxReset_v2", 0);
  allocate_without_context("reset", kept, pooled);
  must("cuCtxSetCurrent", stays);
  say_result("freed where it is", call("cuMemFree_v2", kept));
  use(0);
  say_result("there again", call("cuMemAlloc_v2", &address, kBytes));
  say_result("written", call("cuMemsetD8_v2", address, static_cast<unsigned char>(1), kBytes));
}

namespace {

struct Outliving {
  Address plain = 0, small = 0, large = 0, freed = 0;  // all but the first from a pool
};

// In the current context, small ones beside each other.
Outliving outliving() {
  Outliving made;
  must("cuMemAlloc_v2", &made.plain, size_t{1000});
  must("cuMemAllocAsync", &made.small, size_t{1000}, Stream{nullptr});
  must("cuMemAllocAsync", &made.large, kBytes, Stream{nullptr});
  must("cuMemAllocAsync", &made.freed, size_t{1000}, Stream{nullptr});
  write_pattern(made.plain, 1000, 1);
  write_pattern(made.small, 1000, 2);
  write_pattern(made.large, kBytes, 3);
  must("cuMemFreeAsync", made.freed, Stream{nullptr});
  return made;
}

void say_what_is_there(const char* when, const Outliving& made) {
  say("%s", when);
  const std::pair<const char*, Address> all[] = {{"plain", made.plain}, {"small", made.small}, {"large", made.large}};
  for (const auto& [name, address] : all) {
    unsigned type = 0;
    Context context = nullptr;
    say_result(name + std::string(", its type"), call("cuPointerGetAttribute", static_cast<void*>(&type), 2, address));
    if (address != made.plain) say_result("its context", call("cuPointerGetAttribute", static_cast<void*>(&context), 1, address));
  }
}

// By a context that was made afterwards.
void use_what_is_there(const Outliving& made) {
  Address beside = 0, later = 0, base = 0;
  size_t bytes = 0;
  std::vector<unsigned char> host(kBytes);
  must("cuMemAlloc_v2", &beside, size_t{1000});
  must("cuMemAllocAsync", &later, size_t{1000}, Stream{nullptr});
  write_pattern(beside, 1000, 4);
  write_pattern(later, 1000, 5);
  say("they lie apart: %d", beside != made.small && later != made.small && beside != later);
  say_result("copy the small one", call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), made.small, size_t{1000}));
  say_result("copy the large one", call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), made.large, kBytes));
  say("their bytes: %d %d", has_pattern(made.small, 1000, 2), has_pattern(made.large, kBytes, 3));
  say_result("where it begins", call("cuMemGetAddressRange_v2", &base, &bytes, made.large + 100));
  say("that is it: %d %zu", base == made.large, bytes);
  say_result("fill it", call("cuMemsetD8_v2", made.large, static_cast<unsigned char>(1), kBytes));
  say_result("free the one that was freed", call("cuMemFree_v2", made.freed == later ? Address{64} : made.freed));
  say_result("free the small one in order", call("cuMemFreeAsync", made.small, Stream{nullptr}));
  say_result("free the large one", call("cuMemFree_v2", made.large));
  say_result("wait", call("cuCtxSynchronize"));
  say("others are there: %d %d", has_pattern(beside, 1000, 4), has_pattern(later, 1000, 5));
  say_result("free the large one again", call("cuMemFree_v2", made.large));
  must("cuMemFree_v2", beside);
  must("cuMemFree_v2", later);
}

}  // namespace

// Memory of pools is the GPU's and not the context's: it stays when the primary context is reset or released.
void pools_outlive_resets() {
  use(0);
  const Outliving first = outliving();
  settle();
  must("cuDevicePrimaryCtxReset_v2", 0);
  say_what_is_there("reset", first);
  use(0);
  use_what_is_there(first);
  const Outliving second = outliving();
  while (call("cuDevicePrimaryCtxRelease_v2", 0) == 0) {
  }
  say_what_is_there("released", second);
  use(0);
  use_what_is_there(second);
}

// The same of a context that the program made, while another one stays.
void pools_outlive_contexts() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  const Outliving memory = outliving();
  settle();
  must("cuCtxDestroy_v2", made);
  say_what_is_there("destroyed", memory);
  must("cuCtxSetCurrent", primary);
  use_what_is_there(memory);
}

// Plain memory may come to lie where memory of a pool was whose context is gone.
void plain_after_pools() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  for (const size_t bytes : {size_t{1000}, 3 * kMiB}) {
    Address pooled = 0;
    must("cuMemAllocAsync", &pooled, bytes, Stream{nullptr});
    write_pattern(pooled, bytes, 2);
  }
  settle();
  must("cuCtxDestroy_v2", made);
  must("cuCtxSetCurrent", primary);
  for (const size_t bytes : {size_t{1000}, 3 * kMiB}) {
    bool of_it = true;
    for (int i = 0; i < 4; ++i) {
      Address plain = 0;
      Context context = nullptr;
      must("cuMemAlloc_v2", &plain, bytes);
      must("cuPointerGetAttribute", static_cast<void*>(&context), 1, plain);
      of_it = of_it && context == primary;
    }
    say("%zu bytes, all of the context: %d", bytes, of_it);
  }
}

// What is asked once the primary context is gone: of memory of a pool, which stays, and of handles.
void asked_of_gone_contexts() {
  use(0);
  Address pooled = 0, told = 1;
  must("cuMemAllocAsync", &pooled, size_t{1000}, Stream{nullptr});
  must("cuCtxSynchronize");
  must("cuDevicePrimaryCtxReset_v2", 0);
  int attributes[] = {3};  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
  void* places[] = {&told};
  say_result("its address for a kernel", call("cuPointerGetAttribute", static_cast<void*>(&told), 3, pooled));
  told = 1;
  say_result("among several", call("cuPointerGetAttributes", 1u, attributes, places, pooled));
  say("told: %d", told == 0 ? 0 : told == pooled ? 2 : 1);
  struct {
    unsigned char bytes[64];
  } handle = {};
  say_result("open a handle, no flags", call("cuIpcOpenMemHandle_v2", &told, handle, 0u));
  say_result("with flags", call("cuIpcOpenMemHandle_v2", &told, handle, 1u));
  say_result("none is current", call("cuCtxSetCurrent", Context{nullptr}));
  say_result("its address for a kernel", call("cuPointerGetAttribute", static_cast<void*>(&told), 3, pooled));
  told = 1;
  say_result("among several", call("cuPointerGetAttributes", 1u, attributes, places, pooled));
  say("told: %d", told == 0 ? 0 : told == pooled ? 2 : 1);
}

// Memory that was freed before its context ended goes once.
void freed_in_gone_contexts() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  for (const size_t bytes : {size_t{1000}, size_t{300000}, 4 * kMiB}) {
    Address memory = 0;
    must("cuMemAlloc_v2", &memory, bytes);
    write_pattern(memory, bytes, 3);
    must("cuMemFree_v2", memory);
  }
  must("cuCtxDestroy_v2", made);
  must("cuCtxSetCurrent", primary);
  Address memory = 0;
  say_result("allocate", call("cuMemAlloc_v2", &memory, size_t{1000}));
  write_pattern(memory, 1000, 4);
  say("written: %d", has_pattern(memory, 1000, 4) ? 1 : 0);
  say_result("free", call("cuMemFree_v2", memory));
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
