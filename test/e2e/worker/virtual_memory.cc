// The modes of programs that manage GPU memory themselves: cuMemCreate, cuMemMap and their kin.
#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstring>
#include <random>
#include <thread>

#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 2 * kMiB;
constexpr unsigned kNonBlocking = 1;

using Handle = CUmemGenericAllocationHandle;

CUmemAllocationProp on_gpu(bool exportable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return properties;
}

Handle create(size_t bytes, bool exportable = true) {
  CUmemAllocationProp properties = on_gpu(exportable);
  Handle handle = 0;
  check(cuda().cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate");
  return handle;
}

void release(Handle handle) { check(cuda().cuMemRelease(handle), "cuMemRelease"); }

CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address = 0;
  check(cuda().cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  return address;
}

void map(CUdeviceptr address, size_t bytes, Handle handle) { check(cuda().cuMemMap(address, bytes, 0, handle, 0), "cuMemMap"); }

void allow(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
  check(cuda().cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
}

void unmap(CUdeviceptr address, size_t bytes) { check(cuda().cuMemUnmap(address, bytes), "cuMemUnmap"); }

// A range of addresses of its own, and what must be in it. All work on it is done twice, by the GPU and by the CPU.
class Space {
 public:
  explicit Space(size_t bytes) : base_(reserve(bytes)), expected_(bytes / 8) {
    kernels_ = load_kernels();
    check(cuda().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate");
    check(cuda().cuMemAlloc_v2(&scratch_, 8), "cuMemAlloc");
  }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  CUdeviceptr at(size_t offset) const { return base_ + offset; }
  size_t bytes() const { return expected_.size() * 8; }
  CUstream stream() const { return stream_; }

  void fill(size_t offset, size_t bytes, uint64_t seed) {
    check(launch(kernels_.fill, stream_, at(offset), uint64_t{bytes / 8}, seed), "sim_fill");
    model_fill(word(offset), bytes / 8, seed);
  }
  void mix(size_t offset, size_t bytes, uint64_t round, uint64_t duration_ns = 1'000'000) {
    check(launch(kernels_.mix_slow, stream_, at(offset), uint64_t{bytes / 8}, round, duration_ns), "sim_mix_slow");
    model_mix(word(offset), bytes / 8, round);
  }
  void model_mixed(size_t offset, size_t bytes, uint64_t round) { model_mix(word(offset), bytes / 8, round); }
  // What is mapped at `other` is what is expected at `offset`.
  void verify(size_t offset, size_t bytes, CUdeviceptr other = 0) const {
    CUdeviceptr address = other != 0 ? other : at(offset);
    check(launch(kernels_.checksum, stream_, address, uint64_t{bytes / 8}, scratch_), "sim_checksum");
    uint64_t sum = 0;
    check(cuda().cuMemcpyDtoHAsync_v2(&sum, scratch_, sizeof sum, stream_), "cuMemcpyDtoHAsync");
    wait();
    uint64_t expected = model_checksum(word(offset), bytes / 8);
    if (sum != expected) {
      fail(kExitWrongBytes, "checksum %016" PRIx64 " of %zu bytes at %llx, expected %016" PRIx64, sum, bytes, address, expected);
    }
  }
  // The program moved what was there.
  void moved(size_t from, size_t to, size_t bytes) { std::memmove(word(to), word(from), bytes); }
  void wait() const { check(cuda().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  void end() { check(cuda().cuMemAddressFree(base_, bytes()), "cuMemAddressFree"); }

 private:
  uint64_t* word(size_t offset) { return expected_.data() + offset / 8; }
  const uint64_t* word(size_t offset) const { return expected_.data() + offset / 8; }

  CUdeviceptr base_;
  std::vector<uint64_t> expected_;
  Kernels kernels_{};
  CUstream stream_ = nullptr;
  CUdeviceptr scratch_ = 0;
};

void release_primary() { check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease"); }

}  // namespace

// ---- What PyTorch's allocator does with expandable segments ----

namespace {

// One large range; memory is mapped in at any free place and taken out again, one handle a slot.
class Segment {
 public:
  Segment(size_t slots, size_t slot_bytes) : slot_bytes_(slot_bytes), handles_(slots, 0), space_(slots * slot_bytes) {}

  size_t held() const {
    return static_cast<size_t>(std::count_if(handles_.begin(), handles_.end(), [](Handle h) { return h != 0; }));
  }
  size_t slots() const { return handles_.size(); }

  // Creates handles for free slots of [first, first+count) and makes all of that usable.
  void grow(size_t first, size_t count, uint64_t seed) {
    std::vector<size_t> fresh;
    for (size_t i = first; i < first + count; ++i) {
      if (handles_[i] != 0) continue;
      handles_[i] = create(slot_bytes_);
      fresh.push_back(i);
    }
    for (size_t i : fresh) map(space_.at(i * slot_bytes_), slot_bytes_, handles_[i]);
    allow(space_.at(first * slot_bytes_), count * slot_bytes_);
    for (size_t i : fresh) space_.fill(i * slot_bytes_, slot_bytes_, seed + i);
  }

  void shrink(size_t first, size_t count, bool at_once) {
    space_.wait();
    if (at_once) {
      unmap(space_.at(first * slot_bytes_), count * slot_bytes_);
    }
    for (size_t i = first; i < first + count; ++i) {
      if (!at_once) unmap(space_.at(i * slot_bytes_), slot_bytes_);
      release(handles_[i]);
      handles_[i] = 0;
    }
  }

  // The longest mapped run that begins at `first`: one tensor may lie over all of it.
  size_t run_at(size_t first) const {
    size_t count = 0;
    while (first + count < handles_.size() && handles_[first + count] != 0) ++count;
    return count;
  }

  void mix(size_t first, size_t count, uint64_t round) { space_.mix(first * slot_bytes_, count * slot_bytes_, round); }
  void verify() {
    for (size_t first = 0; first < handles_.size();) {
      size_t count = run_at(first);
      if (count > 0) space_.verify(first * slot_bytes_, count * slot_bytes_);
      first += count + 1;
    }
  }
  void end() {
    for (size_t first = 0; first < handles_.size(); ++first) {
      if (handles_[first] != 0) shrink(first, 1, false);
    }
    space_.end();
  }

 private:
  const size_t slot_bytes_;
  std::vector<Handle> handles_;
  Space space_;
};

}  // namespace

void run_expandable(const Options& options) {
  retain_primary();
  std::mt19937_64 random(options.number("seed", 1));
  const size_t hold = options.number("hold", 64u << 20);
  const size_t large = 20 * kMiB;
  // As on a real GPU: more addresses than there is memory.
  Segment segments[2] = {{hold / large * 9 / 8 + 1, large}, {24, kPage}};
  const size_t most[2] = {hold / large, 8};
  say("expanding");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    Segment& segment = segments[round % 4 == 3 ? 1 : 0];
    const size_t limit = most[round % 4 == 3 ? 1 : 0];
    size_t first = random() % segment.slots();
    size_t mapped = segment.run_at(first);
    if (mapped == 0 && segment.held() < limit) {
      size_t count = 1 + random() % (limit - segment.held());
      segment.grow(first, std::min(count, segment.slots() - first), round * 1000);
    } else if (mapped > 0) {
      segment.mix(first, mapped, round);
      if (random() % 3 == 0 || segment.held() > limit) segment.shrink(first, 1 + random() % mapped, random() % 2 == 0);
    } else {
      for (size_t i = 0; i < segment.slots(); ++i) {
        if (size_t count = segment.run_at(i)) {
          segment.mix(i, count, round);
          break;
        }
      }
    }
    if (round % 8 == 0) segment.verify();
  }
  for (Segment& segment : segments) {
    segment.verify();
    segment.end();
  }
  release_primary();
}

// Threads that make, map, use and give back handles, so that each of these calls meets every moment of a turn's beginning and end.
void run_vmm_churn(const Options& options) {
  CUcontext context = retain_primary();
  const size_t hold = options.number("hold", 64u << 20) / kPage * kPage;
  Space ballast(hold);
  Handle held = create(hold);
  map(ballast.at(0), hold, held);
  allow(ballast.at(0), hold);
  ballast.fill(0, hold, 1);
  say("churning");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < options.number("threads", 3); ++t) {
    threads.emplace_back([&, t] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      std::mt19937_64 random(t);
      Space own(4 * kPage);
      for (uint64_t round = 0; !options.told_to_stop(); ++round) {
        // Most come and go unused, and need no turn.
        for (int i = 0; i < 6; ++i) {
          Handle unused = create(kPage);
          map(own.at(0), kPage, unused);
          if (i % 2 == 0) allow(own.at(0), kPage);
          if (i % 3 == 0) release(unused);
          unmap(own.at(0), kPage);
          if (i % 3 != 0) release(unused);
        }
        const size_t bytes = kPage * (1 + random() % 3);
        Handle used = create(bytes, round % 2 == 0);
        map(own.at(kPage), bytes, used);
        allow(own.at(kPage), bytes);
        own.fill(kPage, bytes, round);
        if (round % 2 == 0) {
          own.verify(kPage, bytes);
          unmap(own.at(kPage), bytes);  // and somewhere else, with the bytes in it
          map(own.at(0), bytes, used);
          allow(own.at(0), bytes);
          own.moved(kPage, 0, bytes);
          own.verify(0, bytes);
          unmap(own.at(0), bytes);
        } else {
          own.wait();
          unmap(own.at(kPage), bytes);
        }
        release(used);
      }
      own.end();
    });
  }
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    ballast.mix(0, hold, round);
    ballast.verify(0, hold);
  }
  for (std::thread& thread : threads) thread.join();
  ballast.verify(0, hold);
  unmap(ballast.at(0), hold);
  release(held);
  ballast.end();
  release_primary();
}

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

// ---- Between processes ----

namespace {

constexpr uint64_t kImporterRounds = 5;

void exec_importer(const Options& options, int fd, size_t bytes) {
  std::string fd_text = std::to_string(fd);
  std::string bytes_text = std::to_string(bytes);
  std::string stop = options.text("stop", "/none");
  execl("/proc/self/exe", "e2e_worker", "vmm-import", "--fd", fd_text.c_str(), "--bytes", bytes_text.c_str(), "--stop", stop.c_str(),
        static_cast<char*>(nullptr));
  _exit(126);
}

}  // namespace

// Exports a handle to a child process, which works on the same memory; the rest of the program comes and goes meanwhile.
void run_vmm_export(const Options& options) {
  retain_primary();
  const size_t shared = 5 * kPage;
  const size_t hold = options.number("hold", 80u << 20) / kPage * kPage;
  Space space(shared + hold);
  Handle own = create(hold);
  map(space.at(shared), hold, own);
  Handle handle = create(shared);
  map(space.at(0), shared, handle);
  allow(space.at(0), shared + hold);
  space.fill(0, shared, 1);
  space.fill(shared, hold, 2);
  space.wait();
  stand_still(options);
  int fd = -1;
  check(cuda().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  say("exported");
  for (uint64_t life = 0; life < options.number("steps", 3); ++life) {
    pid_t child = fork();
    if (child == 0) {
      fcntl(fd, F_SETFD, 0);
      exec_importer(options, fd, shared);
    }
    int status = 0;
    // Meanwhile the memory of its own moves with the turns.
    for (uint64_t round = 0; waitpid(child, &status, WNOHANG) == 0; ++round) {
      space.mix(shared, hold, round);
      space.verify(shared, hold);
      usleep(1000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      fail(kExitUnexpected, "the importer ended with status %x", static_cast<unsigned>(status));
    for (uint64_t round = 0; round < kImporterRounds; ++round) space.model_mixed(0, shared, round);
    space.verify(0, shared);
    space.verify(shared, hold);
  }
  close(fd);
  unmap(space.at(0), shared + hold);
  release(handle);
  release(own);
  space.end();
  release_primary();
}

void run_vmm_import(const Options& options) {
  retain_primary();
  const size_t bytes = options.number("bytes", 0);
  const auto fd = static_cast<intptr_t>(options.number("fd", 0));
  Space space(bytes);
  Handle handle = 0;
  check(cuda().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  map(space.at(0), bytes, handle);
  release(handle);
  allow(space.at(0), bytes);
  for (uint64_t round = 0; round < kImporterRounds; ++round) space.mix(0, bytes, round);
  space.wait();
  unmap(space.at(0), bytes);
  space.end();
  release_primary();
}

// ---- Limits ----

// May hold --limit bytes and not more, mapped or not, and sees what is left.
void run_vmm_limit(const Options& options) {
  retain_primary();
  const size_t limit = options.number("limit", 0);
  const size_t piece = options.number("piece", 4u << 20);
  size_t free_bytes = 0;
  size_t total = 0;
  std::vector<Handle> held;
  CUmemAllocationProp properties = on_gpu(true);
  Handle handle = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuda().cuMemCreate(&handle, piece, &properties, 0)) == CUDA_SUCCESS && held.size() * piece <= 2 * limit) {
    held.push_back(handle);
  }
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "past the limit: CUDA error %d", static_cast<int>(result));
  if (held.size() != limit / piece) fail(kExitUnexpected, "%zu pieces of %zu within %zu", held.size(), piece, limit);
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  if (total != limit || free_bytes != 0) fail(kExitUnexpected, "cuMemGetInfo says %zu free of %zu", free_bytes, total);
  // A mapping keeps the memory, so it counts until that has gone, too.
  CUdeviceptr address = reserve(piece);
  map(address, piece, held.back());
  release(held.back());
  held.pop_back();
  if (cuda().cuMemCreate(&handle, piece, &properties, 0) != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "mapped memory does not count");
  unmap(address, piece);
  check(cuda().cuMemCreate(&handle, piece, &properties, 0), "cuMemCreate after a release");
  release(handle);
  for (Handle each : held) release(each);
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  if (free_bytes > limit || free_bytes + piece < limit) fail(kExitUnexpected, "in the end %zu are free of %zu", free_bytes, total);
  release_primary();
}

}  // namespace nvshare::e2e
