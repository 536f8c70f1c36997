// What the modes that manage GPU memory themselves share: the calls, checked, and a range of addresses with a model of its bytes.
#pragma once

#include <cinttypes>
#include <cstring>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kPage = 2 * kMiB;

using Handle = CUmemGenericAllocationHandle;

inline CUmemAllocationProp on_gpu(bool exportable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return properties;
}

inline Handle create(size_t bytes, bool exportable = true) {
  CUmemAllocationProp properties = on_gpu(exportable);
  Handle handle = 0;
  check(cuda().cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate");
  return handle;
}

inline void release(Handle handle) { check(cuda().cuMemRelease(handle), "cuMemRelease"); }

inline CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address = 0;
  check(cuda().cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  return address;
}

inline void map(CUdeviceptr address, size_t bytes, Handle handle) { check(cuda().cuMemMap(address, bytes, 0, handle, 0), "cuMemMap"); }

inline void allow(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
  check(cuda().cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
}

inline void unmap(CUdeviceptr address, size_t bytes) { check(cuda().cuMemUnmap(address, bytes), "cuMemUnmap"); }

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

}  // namespace nvshare::e2e
