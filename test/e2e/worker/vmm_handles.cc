// Handles and mappings one by one: several mappings, none, what the driver says of them, and its errors.
#include <algorithm>
#include <array>
#include <thread>

#include "e2e/worker/vmm_space.h"

namespace nvshare::e2e {

// ---- Several mappings, none, and what the driver says of them ----

namespace {

constexpr CUpointer_attribute kAsked[] = {
    CU_POINTER_ATTRIBUTE_CONTEXT,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    CU_POINTER_ATTRIBUTE_HOST_POINTER,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
    CU_POINTER_ATTRIBUTE_BUFFER_ID,
    CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPED,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
};
constexpr size_t kAskedCount = std::size(kAsked);

struct Said {
  std::array<uint64_t, kAskedCount> alone{};
  std::array<int, kAskedCount> result{};
  std::array<uint64_t, kAskedCount> together{};
  CUdeviceptr base = 0;
  size_t bytes = 0;
  int range_result = 0;
  unsigned long long access = 0;
  bool operator==(const Said&) const = default;
};

Said ask(CUdeviceptr address) {
  Said said;
  std::array<CUpointer_attribute, kAskedCount> attributes;
  std::array<void*, kAskedCount> data;
  for (size_t i = 0; i < kAskedCount; ++i) {
    said.result[i] = cuda().cuPointerGetAttribute(&said.alone[i], kAsked[i], address);
    if (said.result[i] != CUDA_SUCCESS) said.alone[i] = 0;
    attributes[i] = kAsked[i];
    data[i] = &said.together[i];
  }
  check(cuda().cuPointerGetAttributes(kAskedCount, attributes.data(), data.data(), address), "cuPointerGetAttributes");
  said.range_result = cuda().cuMemGetAddressRange_v2(&said.base, &said.bytes, address);
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  check(cuda().cuMemGetAccess(&said.access, &location, address), "cuMemGetAccess");
  return said;
}

void expect_same(const Said& before, const Said& now, const char* what) {
  if (before == now) return;
  for (size_t i = 0; i < kAskedCount; ++i) {
    if (before.alone[i] == now.alone[i] && before.result[i] == now.result[i] && before.together[i] == now.together[i]) continue;
    std::printf("attribute %u: %d %" PRIx64 " (%" PRIx64 "), now %d %" PRIx64 " (%" PRIx64 ")\n", static_cast<unsigned>(kAsked[i]),
                before.result[i], before.alone[i], before.together[i], now.result[i], now.alone[i], now.together[i]);
  }
  fail(kExitUnexpected, "%s: the answers about an address have changed (range %llx %zu %d, now %llx %zu %d; access %llu, now %llu)", what,
       before.base, before.bytes, before.range_result, now.base, now.bytes, now.range_result, before.access, now.access);
}

}  // namespace

// A large handle that is mapped twice, once for reading only; one that is unmapped while its bytes wait; one that only its mapping keeps.
void run_handles(const Options& options) {
  retain_primary();
  const size_t large = options.number("hold", 90u << 20) / kPage * kPage - 5 * kPage;  // several of what moves at once
  const size_t small = 4 * kPage;
  Space space(large + small + kPage);
  const CUdeviceptr second = reserve(large);
  const CUdeviceptr elsewhere = reserve(small);
  Handle waits = create(small, false);  // the first to go
  Handle twice = create(large);
  map(space.at(0), large, twice);
  allow(space.at(0), large);
  map(second, large, twice);
  allow(second, large, CU_MEM_ACCESS_FLAGS_PROT_READ);
  map(space.at(large), small, waits);
  allow(space.at(large), small);
  Handle kept = create(kPage);
  map(space.at(large + small), kPage, kept);
  allow(space.at(large + small), kPage);
  release(kept);
  space.fill(0, large, 1);
  space.fill(large, small, 2);
  space.fill(large + small, kPage, 3);
  space.verify(0, large, second);
  const Said of_second = ask(second + kPage);
  const Said of_kept = ask(space.at(large + small));
  if (of_second.access != CU_MEM_ACCESS_FLAGS_PROT_READ) fail(kExitUnexpected, "the access is %llu", of_second.access);
  unmap(space.at(large), small);
  say("mapped");
  for (uint64_t round = 0; round == 0 || !options.told_to_stop(); ++round) {
    stand_still(options);  // out of the GPU, at first
    expect_same(of_second, ask(second + kPage), "while it is out");
    expect_same(of_kept, ask(space.at(large + small)), "while it is out");
    // Mapped while nothing is there: recorded, and there when it is used.
    const CUdeviceptr target = round % 2 == 0 ? elsewhere : space.at(large);
    map(target, small, waits);
    if (round % 3 != 0) allow(target, small, CU_MEM_ACCESS_FLAGS_PROT_READ);
    allow(target, small);
    space.verify(large, small, target);
    space.mix(0, large, round);
    space.verify(0, large, second);
    Handle again = 0;
    check(cuda().cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(space.at(large + small) + 4096)),
          "cuMemRetainAllocationHandle");
    CUmemAllocationProp properties{};
    check(cuda().cuMemGetAllocationPropertiesFromHandle(&properties, again), "cuMemGetAllocationPropertiesFromHandle");
    if (properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) fail(kExitUnexpected, "other properties");
    space.mix(large + small, kPage, round);
    space.verify(large + small, kPage);
    release(again);
    expect_same(of_second, ask(second + kPage), "while it is in");
    unmap(target, small);
  }
  unmap(second, large);
  space.verify(0, large);
  unmap(space.at(0), large);
  release(twice);
  release(waits);
  unmap(space.at(large + small), kPage);
  space.end();
  release_primary();
}

// ---- Errors ----

namespace {

// Every answer on one line of its own.
void try_errors(CUdeviceptr range, Handle mapped, Handle other) {
  auto told = [](const char* what, CUresult result) { std::printf("  %s: %d\n", what, static_cast<int>(result)); };
  const Cuda& driver = cuda();
  CUmemAllocationProp good = on_gpu(true);
  CUmemAllocationProp bad = good;
  Handle made = 0;
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  told("create of no bytes", driver.cuMemCreate(&made, 0, &good, 0));
  told("create of half a page", driver.cuMemCreate(&made, kMiB, &good, 0));
  told("create with flags", driver.cuMemCreate(&made, kPage, &good, 1));
  told("create without properties", driver.cuMemCreate(&made, kPage, nullptr, 0));
  told("create for nobody", driver.cuMemCreate(nullptr, kPage, &good, 0));
  bad.location.id = 9;
  told("create on GPU 9", driver.cuMemCreate(&made, kPage, &bad, 0));
  bad = good;
  bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  told("create of no type", driver.cuMemCreate(&made, kPage, &bad, 0));
  told("release of nothing", driver.cuMemRelease(0x1234));
  told("map over a mapping", driver.cuMemMap(range, kPage, 0, other, 0));
  told("map over the end of a mapping", driver.cuMemMap(range + kPage, 2 * kPage, 0, other, 0));
  told("map where nothing is reserved", driver.cuMemMap(range + (size_t{1} << 40), 2 * kPage, 0, other, 0));
  told("map past the reservation", driver.cuMemMap(range + 7 * kPage, 2 * kPage, 0, other, 0));
  told("map of no bytes", driver.cuMemMap(range + 4 * kPage, 0, 0, other, 0));
  told("map between pages", driver.cuMemMap(range + 4 * kPage + 4096, 2 * kPage, 0, other, 0));
  told("map of more than there is", driver.cuMemMap(range + 4 * kPage, 3 * kPage, 0, other, 0));
  told("map from behind the end", driver.cuMemMap(range + 4 * kPage, 2 * kPage, kPage, other, 0));
  told("map with flags", driver.cuMemMap(range + 4 * kPage, 2 * kPage, 0, other, 1));
  told("map of nothing", driver.cuMemMap(range + 4 * kPage, 2 * kPage, 0, 0x1234, 0));
  told("unmap of a part", driver.cuMemUnmap(range, kPage));
  told("unmap of too much", driver.cuMemUnmap(range, 3 * kPage));
  told("unmap of what is not mapped", driver.cuMemUnmap(range + 4 * kPage, 2 * kPage));
  told("access without a list", driver.cuMemSetAccess(range, 2 * kPage, nullptr, 1));
  told("access with an empty list", driver.cuMemSetAccess(range, 2 * kPage, &access, 0));
  told("access to a part", driver.cuMemSetAccess(range, kPage, &access, 1));
  told("access to what is not mapped", driver.cuMemSetAccess(range + 2 * kPage, 2 * kPage, &access, 1));
  told("access past the mapping", driver.cuMemSetAccess(range, 4 * kPage, &access, 1));
  told("free of a range in use", driver.cuMemAddressFree(range, 8 * kPage));
  told("free of half a range", driver.cuMemAddressFree(range, 4 * kPage));
  int fd = -1;
  told("export in an unknown form", driver.cuMemExportToShareableHandle(&fd, mapped, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  told("export of what was not made for it", driver.cuMemExportToShareableHandle(&fd, other, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  told("import of nothing",
       driver.cuMemImportFromShareableHandle(&made, reinterpret_cast<void*>(intptr_t{-1}), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  told("retain of what is not mapped", driver.cuMemRetainAllocationHandle(&made, reinterpret_cast<void*>(range + 4 * kPage)));
  CUmemAllocationProp properties{};
  told("properties of nothing", driver.cuMemGetAllocationPropertiesFromHandle(&properties, 0x1234));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  told("range of what is not mapped", driver.cuMemGetAddressRange_v2(&base, &bytes, range + 4 * kPage));
  unsigned type = 0;
  told("type of what is not mapped", driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range + 4 * kPage));
  told("reservation of no bytes", driver.cuMemAddressReserve(&base, 0, 0, 0, 0));
  told("reservation of half a page", driver.cuMemAddressReserve(&base, kMiB, 0, 0, 0));
}

}  // namespace

// Asks for what is wrong, again after standing still; what is right stays right.
void run_vmm_errors(const Options& options) {
  retain_primary();
  Space space(8 * kPage);
  const size_t hold = options.number("hold", 64u << 20) / kPage * kPage;
  Space ballast(hold);
  Handle mapped = create(2 * kPage);
  Handle other = create(2 * kPage, false);
  Handle large = create(hold);
  map(space.at(0), 2 * kPage, mapped);
  allow(space.at(0), 2 * kPage);
  map(ballast.at(0), hold, large);
  allow(ballast.at(0), hold);
  ballast.fill(0, hold, 1);
  space.fill(0, 2 * kPage, 2);
  ballast.wait();
  space.wait();
  for (int time = 0; time < 2; ++time) {
    if (time > 0) stand_still(options);
    std::printf("errors\n");
    try_errors(space.at(0), mapped, other);
    std::printf("end of errors\n");
    std::fflush(stdout);
  }
  space.verify(0, 2 * kPage);
  ballast.verify(0, hold);
  unmap(space.at(0), 2 * kPage);
  unmap(ballast.at(0), hold);
  for (Handle handle : {mapped, other, large}) release(handle);
  CUresult again = cuda().cuMemRelease(mapped);
  if (again != CUDA_ERROR_INVALID_VALUE) fail(kExitUnexpected, "a handle was released twice: %d", static_cast<int>(again));
  space.end();
  ballast.end();
  release_primary();
}

}  // namespace nvshare::e2e
