// Modes for the ways to hold GPU memory besides plain allocations.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <span>

#include "e2e/worker/desk.h"
#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"
#include "simgpu/driver.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kRowBytes = 4096;

// How much cuMemGetInfo says is in use.
size_t used_bytes() {
  size_t free_bytes = 0;
  size_t total = 0;
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  return total - free_bytes;
}

CUDA_MEMCPY2D copy_of(const Block& block, CUarray array, size_t rows, bool to_array) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = to_array ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_ARRAY;
  copy.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = copy.dstDevice = block.address();
  copy.srcArray = copy.dstArray = array;
  copy.srcPitch = copy.dstPitch = kRowBytes;
  copy.WidthInBytes = kRowBytes;
  copy.Height = rows;
  return copy;
}

// Texels of 16 bytes.
CUDA_ARRAY3D_DESCRIPTOR shape_of(size_t rows, unsigned flags) { return {kRowBytes / 16, rows, 0, CU_AD_FORMAT_FLOAT, 4, flags}; }

}  // namespace

// An array and a mipmapped array keep what was copied into them, turn after turn, and are counted.
void run_arrays(const Options& options) {
  retain_primary();
  Desk desk;
  const size_t bytes = options.number("hold", 64u << 20);
  const size_t array_bytes = options.number("array", 16u << 20);
  const size_t rows = array_bytes / kRowBytes;
  auto source = filled(desk.place, bytes, 1);
  auto back = filled(desk.place, array_bytes, 2);
  say("arrays");
  uint64_t rounds = 0;
  while (!options.told_to_stop()) {
    const size_t before = used_bytes();
    CUarray array = nullptr;
    const CUDA_ARRAY_DESCRIPTOR flat{kRowBytes / 16, rows, CU_AD_FORMAT_FLOAT, 4};
    check(cuda().cuArrayCreate_v2(&array, &flat), "cuArrayCreate");
    CUarray deferred = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR later = shape_of(rows, CUDA_ARRAY3D_DEFERRED_MAPPING);
    check(cuda().cuArray3DCreate_v2(&deferred, &later), "cuArray3DCreate");
    const size_t with_array = used_bytes();
    if (with_array < before + array_bytes || with_array > before + array_bytes + (4u << 20)) {
      fail(kExitUnexpected, "an array of %zu bytes changed what is in use from %zu to %zu", array_bytes, before, with_array);
    }
    CUmipmappedArray mipmapped = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR shape = shape_of(rows, 0);
    check(cuda().cuMipmappedArrayCreate(&mipmapped, &shape, 3), "cuMipmappedArrayCreate");
    if (used_bytes() < with_array + array_bytes + array_bytes / 4) fail(kExitUnexpected, "a mipmapped array is not counted");
    CUarray level = nullptr;
    check(cuda().cuMipmappedArrayGetLevel(&level, mipmapped, 0), "cuMipmappedArrayGetLevel");
    for (int i = 0; i < 6; ++i, ++rounds) {
      source->mix_slowly(rounds, 2'000'000);
      Block expected(desk.place, array_bytes, Allocation::kPlain);
      expected.copy_from(*source);
      for (CUarray target : {array, level}) {
        const CUDA_MEMCPY2D in = copy_of(expected, target, rows, true);
        check(cuda().cuMemcpy2DAsync_v2(&in, desk.place.stream), "cuMemcpy2DAsync to an array");
      }
      usleep(10'000);  // turns end meanwhile
      for (CUarray from : {array, level}) {
        back->set_bytes(0);
        const CUDA_MEMCPY2D out = copy_of(*back, from, rows, false);
        check(cuda().cuMemcpy2DAsync_v2(&out, desk.place.stream), "cuMemcpy2DAsync from an array");
        Block copy(desk.place, array_bytes, Allocation::kPlain);
        copy.copy_from(*back);
        copy.add(expected);  // twice what was written, if it is still there
        Block twice(desk.place, array_bytes, Allocation::kPlain);
        twice.copy_from(expected);
        twice.add(expected);
        uint64_t sums[2] = {};
        for (int which = 0; which < 2; ++which) {
          const Block& summed = which == 0 ? copy : twice;
          check(launch(desk.place.kernels.checksum, desk.place.stream, summed.address(), uint64_t{array_bytes / 8}, desk.scratch),
                "sim_checksum");
          check(cuda().cuMemcpyDtoHAsync_v2(&sums[which], desk.scratch, 8, desk.place.stream), "cuMemcpyDtoHAsync");
          check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
        }
        if (sums[0] != sums[1]) fail(kExitWrongBytes, "an array lost what was written to it");
        copy.free();
        twice.free();
      }
      expected.free();
    }
    check(cuda().cuArrayDestroy(array), "cuArrayDestroy");
    check(cuda().cuArrayDestroy(deferred), "cuArrayDestroy");
    check(cuda().cuMipmappedArrayDestroy(mipmapped), "cuMipmappedArrayDestroy");
    if (used_bytes() > before) fail(kExitUnexpected, "arrays that were destroyed are still counted");
  }
  source->verify_bytes();
  std::printf("%" PRIu64 " rounds\n", rounds);
  release_primary();
}

// ---- Managed memory ----

namespace {

template <typename T>
T attribute_of(CUdeviceptr address, CUpointer_attribute attribute) {
  T value{};
  check(cuda().cuPointerGetAttribute(&value, attribute, address), "cuPointerGetAttribute");
  return value;
}

// Managed memory with its model: the GPU and the host take turns in writing it.
struct Managed {
  CUdeviceptr address = 0;
  size_t bytes;
  std::vector<uint64_t> expected;

  explicit Managed(size_t size) : bytes(size), expected(size / 8) {
    check(cuda().cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    // New managed memory is zeros.
    for (uint64_t word : words()) {
      if (word != 0) fail(kExitWrongBytes, "new managed memory is not zero");
    }
  }
  std::span<uint64_t> words() const { return {reinterpret_cast<uint64_t*>(address), bytes / 8}; }
  void mix(const Desk& desk, uint64_t round) {
    check(launch(desk.place.kernels.mix_slow, desk.place.stream, address, uint64_t{bytes / 8}, round, uint64_t{1'000'000}), "sim_mix_slow");
    model_mix(expected.data(), expected.size(), round);
  }
  void write_from_host(const Desk& desk, uint64_t round) {
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    for (size_t i = round % 511; i < expected.size(); i += 511) words()[i] = expected[i] = round ^ i;
  }
  void verify(const Desk& desk) const {
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    const Difference wrong = difference_between(reinterpret_cast<const unsigned char*>(words().data()),
                                                reinterpret_cast<const unsigned char*>(expected.data()), expected.size() * 8);
    if (wrong.count > 0) fail(kExitWrongBytes, "%zu bytes of managed memory are wrong, the first at %zu", wrong.count, wrong.first);
  }
};

}  // namespace

// Managed memory that the GPU and the host write in turn; with --advise, part of it stays on the host by advice.
void run_managed(const Options& options) {
  retain_primary();
  Desk desk;
  const size_t bytes = options.number("hold", 64u << 20) / 2;
  const size_t before = used_bytes();
  Managed first(bytes);
  Managed second(bytes);
  size_t total = 0;
  check(cuda().cuDeviceTotalMem_v2(&total, 0), "cuDeviceTotalMem");
  if (used_bytes() < std::min(before + 2 * bytes, total)) fail(kExitUnexpected, "managed memory is not counted");
  if (options.number("advise", 0) != 0) {
    check(cuda().cuMemAdvise(second.address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU), "cuMemAdvise");
    check(cuda().cuMemAdvise(second.address, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, 0), "cuMemAdvise");
  }
  if (attribute_of<unsigned>(first.address + 100, CU_POINTER_ATTRIBUTE_IS_MANAGED) != 1 ||
      attribute_of<CUdeviceptr>(first.address + 100, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) != first.address ||
      attribute_of<size_t>(first.address + 100, CU_POINTER_ATTRIBUTE_RANGE_SIZE) != bytes) {
    fail(kExitUnexpected, "managed memory does not answer as the driver's");
  }
  CUdeviceptr base = 0;
  size_t range = 0;
  check(cuda().cuMemGetAddressRange_v2(&base, &range, second.address + 4096), "cuMemGetAddressRange");
  if (base != second.address || range != bytes) fail(kExitUnexpected, "cuMemGetAddressRange of managed memory gives %zu bytes", range);
  say("managed");
  uint64_t round = 0;
  for (; !options.told_to_stop(); ++round) {
    first.mix(desk, round);
    second.mix(desk, round + 1);
    if (round % 4 == 0) first.write_from_host(desk, round);
    if (round % 4 == 1) second.write_from_host(desk, round);
    if (round % 8 == 2) check(cuda().cuMemPrefetchAsync(first.address, bytes, CU_DEVICE_CPU, desk.place.stream), "cuMemPrefetchAsync");
    if (round % 8 == 3) first.verify(desk);
    if (round % 8 == 7) second.verify(desk);
    if (round == 0) say("works");
    usleep(2000);
  }
  first.verify(desk);
  second.verify(desk);
  check(cuda().cuMemFree_v2(first.address), "cuMemFree");
  check(cuda().cuMemFree_v2(second.address), "cuMemFree");
  if (used_bytes() > before) fail(kExitUnexpected, "managed memory that was freed is still counted");
  std::printf("%" PRIu64 " rounds\n", round);
  release_primary();
}

// ---- Memory of graphs ----

// Graphs with memory nodes, made by hand and by capture, replayed; and one whose allocation outlives its launch.
void run_graph_memory(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  const size_t bytes = options.number("graph", 16u << 20);
  const uint64_t words = bytes / 8;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  Block model(desk.place, bytes, Allocation::kPlain);  // what the graphs fill their memory with
  model.fill(5);
  model.mix(9);

  // By hand: an allocation node, then what a capture adds behind it.
  CUgraph by_hand = nullptr;
  check(cuda().cuGraphCreate(&by_hand, 0), "cuGraphCreate");
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  parameters.bytesize = bytes;
  CUgraphNode node = nullptr;
  check(cuda().cuGraphAddMemAllocNode(&node, by_hand, nullptr, 0, &parameters), "cuGraphAddMemAllocNode");
  check(cuda().cuStreamBeginCaptureToGraph(stream, by_hand, &node, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCaptureToGraph");
  check(launch(desk.place.kernels.fill, stream, parameters.dptr, words, uint64_t{5}), "sim_fill");
  check(launch(desk.place.kernels.mix, stream, parameters.dptr, words, uint64_t{9}), "sim_mix");
  check(launch(desk.place.kernels.add, stream, block->address(), parameters.dptr, words), "sim_add");
  check(cuda().cuMemFreeAsync(parameters.dptr, stream), "cuMemFreeAsync in a capture");
  check(cuda().cuStreamEndCapture(stream, &by_hand), "cuStreamEndCapture");

  // By capture, and not freed.
  check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  CUdeviceptr kept = 0;
  check(cuda().cuMemAllocAsync(&kept, bytes, stream), "cuMemAllocAsync in a capture");
  check(launch(desk.place.kernels.fill, stream, kept, words, uint64_t{5}), "sim_fill");
  check(launch(desk.place.kernels.mix, stream, kept, words, uint64_t{9}), "sim_mix");
  CUgraph captured = nullptr;
  check(cuda().cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");

  CUgraphExec executables[2] = {};
  check(cuda().cuGraphInstantiateWithFlags(&executables[0], by_hand, 0), "cuGraphInstantiate");
  check(cuda().cuGraphInstantiateWithFlags(&executables[1], captured, 0), "cuGraphInstantiate");
  say("replaying");
  uint64_t replays = 0;
  while (!options.told_to_stop()) {
    for (int i = 0; i < 3; ++i, ++replays) {
      check(cuda().cuGraphLaunch(executables[0], stream), "cuGraphLaunch");
      block->model_add(model);
    }
    check(cuda().cuGraphLaunch(executables[1], stream), "cuGraphLaunch");
    block->mix_slowly(replays, 3'000'000);
    usleep(15'000);  // turns end meanwhile: what the graph allocated stays
    check(launch(desk.place.kernels.add, stream, block->address(), kept, words), "sim_add");
    block->model_add(model);
    block->verify_checksum(desk.scratch);
    check(cuda().cuMemFreeAsync(kept, stream), "cuMemFreeAsync of a graph's allocation");
    if (replays % 9 == 0) {
      check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
      check(cuda().cuDeviceGraphMemTrim(0), "cuDeviceGraphMemTrim");
      cuuint64_t reserved = 1;
      check(cuda().cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved), "cuDeviceGetGraphMemAttribute");
      if (reserved != 0) fail(kExitUnexpected, "%llu bytes of graph memory after a trim", static_cast<unsigned long long>(reserved));
    }
  }
  block->verify_bytes();
  std::printf("%" PRIu64 " replays\n", replays);
  for (CUgraphExec executable : executables) check(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
  check(cuda().cuGraphDestroy(by_hand), "cuGraphDestroy");
  check(cuda().cuGraphDestroy(captured), "cuGraphDestroy");
  release_primary();
}

// ---- Pools ----

namespace {

uint64_t pool_count(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  check(cuda().cuMemPoolGetAttribute(pool, attribute, &value), "cuMemPoolGetAttribute");
  return value;
}

void expect_count(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t least, uint64_t most, const char* what) {
  const uint64_t value = pool_count(pool, attribute);
  if (value < least || value > most) {
    fail(kExitUnexpected, "%s is %" PRIu64 ", not within %" PRIu64 " and %" PRIu64, what, value, least, most);
  }
}

}  // namespace

// Pools count what is in use of them, and their memory is right over turns; that of a pool made for sharing does not swap.
void run_pools(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  constexpr uint64_t kPage = 2u << 20;
  const size_t piece = options.number("piece", 6u << 20);
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  CUmemoryPool standard = nullptr;
  check(cuda().cuDeviceGetDefaultMemPool(&standard, 0), "cuDeviceGetDefaultMemPool");
  CUmemoryPool own = make_pool(CU_MEM_HANDLE_TYPE_NONE, 4 * piece);
  CUmemoryPool shared = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  int follow = 0;
  check(cuda().cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow), "cuMemPoolSetAttribute");
  check(cuda().cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow), "cuMemPoolGetAttribute");
  if (follow != 0) fail(kExitUnexpected, "a setting of a pool is lost");
  cuuint64_t threshold = UINT64_MAX;
  check(cuda().cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "cuMemPoolSetAttribute");
  say("pools");
  uint64_t rounds = 0;
  for (; !options.told_to_stop(); ++rounds) {
    cuuint64_t zero = 0;
    for (CUmemoryPool pool : {standard, own}) {
      check(cuda().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), "cuMemPoolSetAttribute");
      check(cuda().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero), "cuMemPoolSetAttribute");
      expect_count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0, 0, "what is in use of an empty pool");
      expect_count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0, 0, "the most that was in use since it was reset");
    }
    CUdeviceptr memory[4] = {};
    check(cuda().cuMemAllocAsync(&memory[0], piece, stream), "cuMemAllocAsync");
    check(cuda().cuMemAllocFromPoolAsync(&memory[1], piece, own, stream), "cuMemAllocFromPoolAsync");
    check(cuda().cuMemAllocFromPoolAsync(&memory[2], 1000, own, stream), "cuMemAllocFromPoolAsync");
    check(cuda().cuMemAllocFromPoolAsync(&memory[3], piece, shared, stream), "cuMemAllocFromPoolAsync of a pool for sharing");
    CUdeviceptr too_much = 0;
    if (cuda().cuMemAllocFromPoolAsync(&too_much, 4 * piece, own, stream) != CUDA_ERROR_OUT_OF_MEMORY) {
      fail(kExitUnexpected, "a pool gives more than it may have");
    }
    expect_count(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, piece, piece, "what is in use of the default pool");
    expect_count(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, piece + 1000, piece + 1024, "what is in use of a pool");
    expect_count(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, piece + kPage, piece + 2 * kPage, "what a pool has");
    expect_count(shared, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, piece, piece, "what is in use of a pool for sharing");
    const CUmemoryPool pools_of[] = {standard, own, own, shared};
    for (int i = 0; i < 4; ++i) {
      CUmemoryPool pool = nullptr;
      check(cuda().cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory[i]), "cuPointerGetAttribute");
      if (pool != pools_of[i]) fail(kExitUnexpected, "allocation %d names another pool", i);
    }
    for (CUdeviceptr each : {memory[0], memory[1], memory[3]}) {
      check(launch(desk.place.kernels.fill, stream, each, uint64_t{piece / 8}, rounds), "sim_fill");
    }
    block->mix_slowly(rounds, 3'000'000);
    usleep(10'000);  // turns end meanwhile
    Block model(desk.place, piece, Allocation::kPlain);
    model.fill(rounds);
    for (CUdeviceptr each : {memory[0], memory[1], memory[3]}) {
      check(launch(desk.place.kernels.add, stream, block->address(), each, uint64_t{piece / 8}), "sim_add");
      block->model_add(model);
    }
    block->verify_checksum(desk.scratch);
    model.free();
    check(cuda().cuMemFreeAsync(memory[0], stream), "cuMemFreeAsync");
    check(cuda().cuMemFreeAsync(memory[1], stream), "cuMemFreeAsync");
    check(cuda().cuMemFree_v2(memory[2]), "cuMemFree of a pool's memory");
    check(cuda().cuMemFreeAsync(memory[3], stream), "cuMemFreeAsync");
    expect_count(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, piece + 1000, piece + 1024, "the most that was in use of a pool");
    check(cuda().cuMemPoolTrimTo(own, 0), "cuMemPoolTrimTo");
    // The current pool is what cuMemAllocAsync takes.
    check(cuda().cuDeviceSetMemPool(0, own), "cuDeviceSetMemPool");
    check(cuda().cuMemAllocAsync(&memory[0], piece, stream), "cuMemAllocAsync");
    expect_count(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, piece, piece, "what is in use of the current pool");
    check(cuda().cuMemFreeAsync(memory[0], stream), "cuMemFreeAsync");
    check(cuda().cuDeviceSetMemPool(0, standard), "cuDeviceSetMemPool");
    // The driver counts its own pool's memory as in use until the stream has come to the free.
    check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  block->verify_bytes();
  check(cuda().cuMemPoolDestroy(own), "cuMemPoolDestroy");
  check(cuda().cuMemPoolDestroy(shared), "cuMemPoolDestroy");
  std::printf("%" PRIu64 " rounds\n", rounds);
  release_primary();
}

// Makes the driver take memory for itself: modules, streams, events, and with lazy modules the first launch.
void run_load(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 32u << 20), 1);
  for (uint64_t i = 0; i < options.number("modules", 8); ++i) {
    load_kernels();
    CUstream stream = nullptr;
    CUevent event = nullptr;
    check(cuda().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
    check(cuda().cuEventCreate(&event, 0), "cuEventCreate");
    block->mix_slowly(i, 1'000'000);
    block->verify_checksum(desk.scratch);
    check(cuda().cuEventDestroy_v2(event), "cuEventDestroy");
    check(cuda().cuStreamDestroy_v2(stream), "cuStreamDestroy");
  }
  say("loaded");
  block->verify_bytes();
  release_primary();
}

// Many pools made for sharing, which the driver serves, end one right after the other.
void run_ending_pools(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  const size_t count = options.number("pools", 100);
  say("pools");
  while (!options.told_to_stop()) {
    std::vector<CUmemoryPool> pools;
    for (size_t i = 0; i < count; ++i) {
      pools.push_back(make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      CUdeviceptr memory = 0;
      check(cuda().cuMemAllocFromPoolAsync(&memory, 4096, pools.back(), stream), "cuMemAllocFromPoolAsync of a pool for sharing");
      check(cuda().cuMemFreeAsync(memory, stream), "cuMemFreeAsync");
    }
    for (const CUmemoryPool pool : pools) check(cuda().cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  }
  release_primary();
}

}  // namespace nvshare::e2e
