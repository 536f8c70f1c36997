// What the driver says of an address in each kind of allocation; the test compares it with what it says without nvshare.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

struct Held {
  std::string kind;
  CUdeviceptr address;
  size_t bytes;
};

// Addresses differ from run to run: they are told as distances from the allocation.
long long from(CUdeviceptr base, CUdeviceptr address) { return static_cast<long long>(address - base); }

void ask(const Held& held, size_t offset, CUcontext context) {
  const CUdeviceptr address = held.address + offset;
  CUdeviceptr base = 0, start = 0, device = 0;
  CUcontext of = nullptr;
  size_t bytes = 0, size = 0;
  unsigned type = 0, managed = 2, mapped = 2;
  int ordinal = -1;
  void* host = nullptr;
  check(cuda().cuMemGetAddressRange_v2(&base, &bytes, address), "cuMemGetAddressRange");
  const auto get = [&](void* to, CUpointer_attribute which) { return static_cast<int>(cuda().cuPointerGetAttribute(to, which, address)); };
  const int results[] = {get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),       get(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
                         get(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), get(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE),
                         get(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER),  get(&of, CU_POINTER_ATTRIBUTE_CONTEXT),
                         get(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED),     get(&mapped, CU_POINTER_ATTRIBUTE_MAPPED),
                         get(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER)};
  std::printf("%s +%zu: range %lld %zu, type %u, device %d, start %lld %zu, pointer %lld, context %s, managed %u, mapped %u;",
              held.kind.c_str(), offset, from(held.address, base), bytes, type, ordinal, from(held.address, start), size,
              from(held.address, device), of == context ? "own" : "other", managed, mapped);
  for (const int result : results) std::printf(" %d", result);
  std::printf("\n");
}

}  // namespace

// --hold: of the largest allocation. Asks, stands still until --go, and asks again.
void run_pointers(const Options& options) {
  CUcontext context = nullptr;
  check(cuda().cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  auto desk = std::make_unique<Desk>();
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Held> held;
  const auto add = [&](const char* kind, size_t bytes, Allocation how) {
    blocks.push_back(std::make_unique<Block>(desk->place, bytes, how));
    blocks.back()->fill(bytes);
    held.push_back({kind, blocks.back()->address(), bytes});
  };
  add("large", options.number("hold", 100u << 20), Allocation::kPlain);  // of several physical pieces
  add("small", 1000, Allocation::kPlain);
  add("beside it", 1000, Allocation::kPlain);
  add("odd", (3u << 20) + 40, Allocation::kPlain);
  check(cuda().cuStreamSynchronize(desk->place.stream), "cuStreamSynchronize");
  for (int pass = 0; pass < 2; ++pass) {
    if (pass > 0) stand_still(options);
    std::printf("pass %d\n", pass);
    for (const Held& one : held) {
      for (const size_t offset : {size_t{0}, one.bytes / 2, one.bytes - 1}) ask(one, offset, context);
    }
    std::printf("end of pass\n");
    std::fflush(stdout);
  }
  for (auto& block : blocks) block->verify_bytes();
  release_primary();
}

}  // namespace nvshare::e2e
