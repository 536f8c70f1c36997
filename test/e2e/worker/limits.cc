// Modes for programs under a memory limit: they know what they may have, and say what they got.
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kPage = 2u << 20;  // in which the driver takes memory
constexpr size_t kRowBytes = 4096;

struct Way {
  const char* name;
  std::function<CUresult(size_t)> allocate;
  std::function<CUresult()> release;
  bool exact = true;  // an allocation of n bytes takes n bytes
};

size_t free_bytes_now() {
  size_t free_bytes = 0;
  size_t total = 0;
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  return free_bytes;
}

void expect_oom(CUresult result, const char* what, const char* way) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "%s (%s): CUDA error %d", what, way, static_cast<int>(result));
}

void expect_full(const char* way) {
  CUdeviceptr address = 0;
  expect_oom(cuda().cuMemAlloc_v2(&address, 1), "one byte more than the limit", way);
}

// With `room` bytes left: the last byte within succeeds, the first past it fails, and a free gives everything back.
void try_way(const Way& way, size_t room) {
  for (int round = 0; round < 2; ++round) {
    expect_oom(way.allocate(room + kPage), "a page more than there is", way.name);
    if (free_bytes_now() != room) fail(kExitUnexpected, "%s: after a refusal %zu are free, not %zu", way.name, free_bytes_now(), room);
    const size_t bytes = way.exact ? room : room / 2;
    check(way.allocate(bytes), way.name);
    CUdeviceptr rest = 0;
    if (const size_t left = free_bytes_now(); way.exact && left != 0) fail(kExitUnexpected, "%s: %zu are left", way.name, left);
    if (!way.exact) check(cuda().cuMemAlloc_v2(&rest, free_bytes_now()), "the rest beside it");
    if (way.exact) {
      expect_full(way.name);
    } else {
      CUdeviceptr page = 0;
      expect_oom(cuda().cuMemAlloc_v2(&page, kPage), "a page more than the limit", way.name);
    }
    check(way.release(), way.name);
    if (rest != 0) check(cuda().cuMemFree_v2(rest), "cuMemFree");
    if (free_bytes_now() != room) fail(kExitUnexpected, "%s: %zu are free again, not %zu", way.name, free_bytes_now(), room);
  }
}

void try_pool(const char* name, CUmemoryPool pool, CUstream stream, size_t room) {
  CUdeviceptr address = 0;
  try_way({name, [&](size_t bytes) { return cuda().cuMemAllocFromPoolAsync(&address, bytes, pool, stream); },
           [&] {
             check(cuda().cuMemFreeAsync(address, stream), "cuMemFreeAsync");
             check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
             return cuda().cuMemPoolTrimTo(pool, 0);
           }},
          room);
}

CUresult launch_graph_of(size_t bytes, CUstream stream, CUdeviceptr* address) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode node = nullptr;
  check(cuda().cuGraphCreate(&graph, 0), "cuGraphCreate");
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  parameters.bytesize = bytes;
  check(cuda().cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters), "cuGraphAddMemAllocNode");
  check(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
  const CUresult result = cuda().cuGraphLaunch(executable, stream);
  if (result == CUDA_SUCCESS) check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  *address = parameters.dptr;
  check(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  return result;
}

}  // namespace

// Each way to allocate, with --room of --limit bytes left.
void run_limit_kinds(const Options& options) {
  retain_primary();
  const size_t limit = options.number("limit", 64u << 20);
  const size_t room = options.number("room", 16u << 20);
  CUstream stream = nullptr;
  check(cuda().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  CUdeviceptr held = 0;
  check(cuda().cuMemAlloc_v2(&held, limit - room), "cuMemAlloc");
  if (free_bytes_now() != room) fail(kExitUnexpected, "%zu are free of the last %zu", free_bytes_now(), room);

  CUdeviceptr address = 0;
  const auto free_plain = [&] { return cuda().cuMemFree_v2(address); };
  try_way({"plain", [&](size_t bytes) { return cuda().cuMemAlloc_v2(&address, bytes); }, free_plain}, room);
  size_t pitch = 0;
  try_way({"pitch", [&](size_t bytes) { return cuda().cuMemAllocPitch_v2(&address, &pitch, kRowBytes, bytes / kRowBytes, 4); }, free_plain},
          room);
  // Its documentation names elements of 4, 8 and 16 bytes; a driver takes others as well.
  try_way({"pitch of odd elements",
           [&](size_t bytes) { return cuda().cuMemAllocPitch_v2(&address, &pitch, kRowBytes, bytes / kRowBytes, 3); }, free_plain},
          room);
  try_way({"managed", [&](size_t bytes) { return cuda().cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL); }, free_plain}, room);
  try_way({"stream-ordered", [&](size_t bytes) { return cuda().cuMemAllocAsync(&address, bytes, stream); },
           [&] { return cuda().cuMemFreeAsync(address, stream); }},
          room);
  const std::pair<const char*, CUmemoryPool> pools[] = {
      {"pool", make_pool(CU_MEM_HANDLE_TYPE_NONE)},
      {"pool for other processes", make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)},
      {"pool of managed memory", make_pool(CU_MEM_HANDLE_TYPE_NONE, 0, CU_MEM_ALLOCATION_TYPE_MANAGED)},
  };
  for (const auto& [name, pool] : pools) {
    try_pool(name, pool, stream, room);
    check(cuda().cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  }
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool standard = nullptr;
  check(cuda().cuMemGetDefaultMemPool(&standard, &location, CU_MEM_ALLOCATION_TYPE_MANAGED), "cuMemGetDefaultMemPool");
  try_pool("the GPU's pool of managed memory", standard, stream, room);

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  try_way({"virtual memory", [&](size_t bytes) { return cuda().cuMemCreate(&handle, bytes, &properties, 0); },
           [&] { return cuda().cuMemRelease(handle); }},
          room);

  CUarray array = nullptr;
  try_way({"array",
           [&](size_t bytes) {
             const CUDA_ARRAY_DESCRIPTOR shape{kRowBytes / 16, bytes / kRowBytes, CU_AD_FORMAT_FLOAT, 4};
             return cuda().cuArrayCreate_v2(&array, &shape);
           },
           [&] { return cuda().cuArrayDestroy(array); }, false},
          room);
  CUmipmappedArray mipmapped = nullptr;
  try_way({"mipmapped array",
           [&](size_t bytes) {
             const CUDA_ARRAY3D_DESCRIPTOR shape{kRowBytes / 16, bytes / kRowBytes, 0, CU_AD_FORMAT_FLOAT, 4, 0};
             return cuda().cuMipmappedArrayCreate(&mipmapped, &shape, 3);
           },
           [&] { return cuda().cuMipmappedArrayDestroy(mipmapped); }, false},
          room);
  try_way({"memory node of a graph", [&](size_t bytes) { return launch_graph_of(bytes, stream, &address); },
           [&] {
             check(cuda().cuMemFreeAsync(address, stream), "cuMemFreeAsync");
             check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
             return cuda().cuDeviceGraphMemTrim(0);
           }},
          room);

  // Freed twice: the second time is refused, and gives nothing back.
  check(cuda().cuMemAlloc_v2(&address, kPage), "a page");
  check(free_plain(), "cuMemFree");
  if (free_plain() == CUDA_SUCCESS) fail(kExitUnexpected, "memory was freed twice");
  if (free_bytes_now() != room) fail(kExitUnexpected, "after a second free %zu are free, not %zu", free_bytes_now(), room);

  // Many small ones: the slabs that they share do not eat the limit.
  std::vector<CUdeviceptr> small(room / 65536);
  for (CUdeviceptr& each : small) check(cuda().cuMemAlloc_v2(&each, 65536), "a small allocation within the limit");
  expect_full("small allocations");
  for (CUdeviceptr each : small) check(cuda().cuMemFree_v2(each), "cuMemFree");
  check(cuda().cuMemAlloc_v2(&address, room), "all in one piece, once the small ones are free");
  check(free_plain(), "cuMemFree");
  check(cuda().cuMemFree_v2(held), "cuMemFree");
  if (free_bytes_now() != limit) fail(kExitUnexpected, "in the end %zu are free of %zu", free_bytes_now(), limit);
  release_primary();
}

// Many allocations and frees of --piece bytes, then stands still.
// --past: so many allocations that the limit refuses, after those that it does not.
void run_limit_churn(const Options& options) {
  retain_primary();
  const size_t piece = options.number("piece", 4u << 20);
  for (size_t i = options.number("steps", 500); i > 0; --i) {
    CUdeviceptr address = 0;
    check(cuda().cuMemAlloc_v2(&address, piece), "cuMemAlloc");
    check(cuda().cuMemFree_v2(address), "cuMemFree");
  }
  for (size_t i = options.number("past", 0); i > 0; --i) {
    CUdeviceptr address = 0;
    expect_oom(cuda().cuMemAlloc_v2(&address, 128u << 20), "past the limit", "plain");
  }
  say("churned");
  while (!options.told_to_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  release_primary();
}

// Takes pieces of --piece as long as it can, or has --most; says how many whenever it has been refused, or has them all.
void run_limit_follow(const Options& options) {
  retain_primary();
  const size_t piece = options.number("piece", 4u << 20);
  const size_t most = options.number("most", SIZE_MAX);
  std::vector<CUdeviceptr> held;
  size_t said = SIZE_MAX;
  while (!options.told_to_stop()) {
    if (held.size() < most) {
      CUdeviceptr address = 0;
      const CUresult result = cuda().cuMemAlloc_v2(&address, piece);
      if (result == CUDA_SUCCESS) {
        held.push_back(address);
        continue;
      }
      expect_oom(result, "past the limit", "plain");
    }
    if (said != held.size()) {
      char text[64];
      snprintf(text, sizeof text, "holds %zu pieces", said = held.size());
      say(text);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (CUdeviceptr address : held) check(cuda().cuMemFree_v2(address), "cuMemFree");
  release_primary();
}

// Holds --hold bytes, waits until cuMemGetInfo says that --free are free (at least, with --more 1), and stands still.
void run_limit_view(const Options& options) {
  retain_primary();
  const size_t limit = options.number("limit", 64u << 20);
  const size_t expected = options.number("free", 0);
  const bool more = options.number("more", 0) != 0;
  CUdeviceptr held = 0;
  if (const size_t hold = options.number("hold", 0); hold != 0) check(cuda().cuMemAlloc_v2(&held, hold), "cuMemAlloc");
  size_t free_bytes = 0;
  size_t total = 0;
  // What other processes use is told a little later.
  for (bool seen = false; !seen && !options.told_to_stop(); std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
    seen = more ? free_bytes >= expected : free_bytes == expected;
  }
  char text[96];
  snprintf(text, sizeof text, "sees %zu free of %zu", free_bytes, total);
  say(text);
  size_t all = 0;
  check(cuda().cuDeviceTotalMem_v2(&all, 0), "cuDeviceTotalMem");
  if (total != limit || all != limit) fail(kExitUnexpected, "the GPU has %zu and %zu bytes, not %zu", total, all, limit);
  while (!options.told_to_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (held != 0) check(cuda().cuMemFree_v2(held), "cuMemFree");
  release_primary();
}

}  // namespace nvshare::e2e
