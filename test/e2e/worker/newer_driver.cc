// A program that uses what a driver newer than nvshare has (simgpu/newer_calls.h).
#include <dlfcn.h>

#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"
#include "simgpu/newer_calls.h"

namespace nvshare::e2e {
namespace {

constexpr int kNewVersion = 13090;
constexpr size_t kMiB = size_t{1} << 20;

struct Function {
  const char* name;
  void* address;
};

// By dlsym, or as a CUDA runtime does.
void* looked_up(const std::string& reach, void* driver, const char* name, int version = kNewVersion) {
  if (reach == "dlsym") return dlsym(driver, name);
  const auto get = reinterpret_cast<decltype(&api::cuGetProcAddress_v2)>(dlsym(driver, "cuGetProcAddress_v2"));
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  check(get(name, &found, version, 0, &status), name);
  return found;
}

CUresult call(void* function, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  using Arguments = simgpu::UnknownArguments;
  constexpr const auto& kWords = Arguments::kWords;
  constexpr const auto& kNumbers = Arguments::kNumbers;
  return static_cast<CUresult>(reinterpret_cast<simgpu::UnknownCall>(function)(
      to, from, bytes, stream, kWords[0], kWords[1], kWords[2], kWords[3], kNumbers[0], kNumbers[1], kNumbers[2], kNumbers[3], kNumbers[4],
      kNumbers[5], kNumbers[6], kNumbers[7], kNumbers[8]));
}

}  // namespace

// Looks everything up, stands still, and then calls all of it while others want the GPU: copies of one block to others, whose bytes are
// compared.
void run_newer_driver(const Options& options) {
  retain_primary();
  Desk desk;
  const std::string reach = options.text("reach", "dlsym");
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  std::vector<Function> functions;
#define E2E_LOOK_UP(symbol) functions.push_back({#symbol, looked_up(reach, driver, #symbol)});
  SIM_UNKNOWN_HARMLESS(E2E_LOOK_UP)
  const size_t harmless = functions.size();
  SIM_UNKNOWN_RISKY(E2E_LOOK_UP)
#undef E2E_LOOK_UP
  for (const Function& each : functions) {
    if (each.address == nullptr) fail(kExitUnexpected, "%s is not there", each.name);
  }
  const size_t bytes = options.number("hold", 96 * kMiB) / 2;
  auto source = filled(desk.place, bytes, 7);
  auto target = filled(desk.place, bytes, 8);
  if (options.text("calls", "all") == "none") {  // a neighbour that wants all of its memory, again and again
    while (!options.told_to_stop()) {
      source->verify_checksum(desk.scratch);
      target->verify_checksum(desk.scratch);
    }
    return;
  }
  stand_still(options);
  // Questions that ask for nothing.
  for (size_t i = 0; i < harmless; ++i) {
    if (call(functions[i].address, 0, 0, 0, desk.place.stream) != CUDA_SUCCESS) fail(kExitUnexpected, "%s fails", functions[i].name);
  }
  say("asked");
  if (options.text("calls", "all") == "questions") {
    while (!options.told_to_stop()) usleep(1000);
    return;
  }
  for (size_t i = harmless; i < functions.size(); ++i) {
    target->set_bytes(static_cast<unsigned char>(i));
    check(call(functions[i].address, target->address(), source->address(), bytes, desk.place.stream), functions[i].name);
    uint64_t sum = 0;
    check(launch(desk.place.kernels.checksum, desk.place.stream, target->address(), uint64_t{bytes / 8}, desk.scratch), "sim_checksum");
    check(cuda().cuMemcpyDtoHAsync_v2(&sum, desk.scratch, sizeof sum, desk.place.stream), "cuMemcpyDtoHAsync");
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    if (sum != source->checksum()) fail(kExitWrongBytes, "%s copied something else", functions[i].name);
  }
  source->verify_checksum(desk.scratch);
  say("called");
  // Memory that is new has to be there for them as well, with the lock or without.
  while (!options.told_to_stop()) {
    auto late = std::make_unique<Block>(desk.place, 2 * kMiB, Allocation::kPlain);
    check(call(functions.back().address, late->address(), source->address(), late->bytes(), desk.place.stream), "late");
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    late->free();
    usleep(500);
  }
}

// Versions of known functions that came after 13.0: which one a program reaches is the driver's to say.
void run_newer_versions(const Options& options) {
  retain_primary();
  Desk desk;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  using Bind = CUresult (*)(uint64_t, int, size_t, uint64_t, size_t, size_t, unsigned long long);
  const auto bind = reinterpret_cast<Bind>(looked_up("proc", driver, "cuMulticastBindMem", 13010));
  check(bind(1, 0, 0, 2, 0, 2 * kMiB, 7), "cuMulticastBindMem of 13.1");
  using HostFunction = CUresult (*)(CUstream, void (*)(void*), void*, unsigned);
  const auto host = reinterpret_cast<HostFunction>(looked_up("proc", driver, "cuLaunchHostFunc", 13020));
  int ran = 0;
  check(host(
            desk.place.stream, [](void* data) { *static_cast<int*>(data) = 1; }, &ran, 1),
        "cuLaunchHostFunc of 13.2");
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  if (ran != 1) fail(kExitUnexpected, "the host function did not run");
  auto a = filled(desk.place, 40 * kMiB, 1);
  auto b = filled(desk.place, 40 * kMiB, 2);
  using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, void*, CUstream);
  const auto copy = reinterpret_cast<Copy>(looked_up("proc", driver, "cuMemcpyWithAttributesAsync", 13020));
  say("ready");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    a->mix(round);
    check(copy(b->address(), a->address(), a->bytes(), nullptr, desk.place.stream), "cuMemcpyWithAttributesAsync");
    std::vector<unsigned char> left(1 * kMiB);
    std::vector<unsigned char> right(left.size());
    check(cuda().cuMemcpyDtoHAsync_v2(left.data(), a->address(), left.size(), desk.place.stream), "cuMemcpyDtoHAsync");
    check(cuda().cuMemcpyDtoHAsync_v2(right.data(), b->address(), right.size(), desk.place.stream), "cuMemcpyDtoHAsync");
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    if (left != right) fail(kExitWrongBytes, "cuMemcpyWithAttributesAsync copied something else");
  }
}

}  // namespace nvshare::e2e
