// A libcuda.so.1 that exports what the real one does and does nothing: for tests of lookups alone. fake_driver_exports.c, made by CMake
// from entry_points.txt, has the other functions; here is the lookup, as the driver's documentation describes it.
#include <cstdlib>
#include <cstring>

#include "interposer/symbols/testing/entry_point_list.h"

extern "C" {

struct FakeFunction {
  const char* name;
  int (*function)();
};
extern const FakeFunction fake_driver_functions[];  // ends with a null name

// In no list.
int cuMemNobodyKnows() { return 1001; }
int cuMemcpyAsync_v9() { return 1002; }
int cuDeviceGetNobodyKnows() { return 1003; }

int cuGetProcAddress(const char* symbol, void** function, int cuda_version, unsigned long long flags);
int cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, unsigned long long flags, int* status);
}

namespace {

constexpr unsigned long long kPerThread = 2;
constexpr int kSuccess = 0, kNotFound = 500;

// An address that is none of the exports.
int unexported() { return 0; }

constexpr int kFuture = 99000;  // the CUDA version that added what no list knows

struct Future {
  const char* request;
  int (*function)();
};
// A function, a version of a known one, and a question.
constexpr Future kFutures[] = {
    {"cuMemNobodyKnows", cuMemNobodyKnows}, {"cuMemcpyAsync", cuMemcpyAsync_v9}, {"cuDeviceGetNobodyKnows", cuDeviceGetNobodyKnows}};

// The newest version that exists at cuda_version; its per-thread variant if asked for and there. Empty: none.
std::string resolve(const std::string& symbol, int cuda_version, unsigned long long flags) {
  const nvshare::testing::EntryPoint* best = nullptr;
  static const auto entries = nvshare::testing::entry_points();
  for (const auto& entry : entries) {
    if (entry.request_name() != symbol || entry.since > cuda_version) continue;
    if (entry.per_thread() && (flags & kPerThread) == 0) continue;
    if (best != nullptr && best->per_thread() && !entry.per_thread()) continue;
    if (best != nullptr && best->per_thread() == entry.per_thread() && entry.since < best->since) continue;
    best = &entry;
  }
  return best != nullptr ? best->symbol : "";
}

void* address_of(const std::string& name) {
  if (name == "cuGetProcAddress") return reinterpret_cast<void*>(&cuGetProcAddress);
  if (name == "cuGetProcAddress_v2") return reinterpret_cast<void*>(&cuGetProcAddress_v2);
  for (const FakeFunction* entry = fake_driver_functions; entry->name != nullptr; ++entry) {
    if (name == entry->name) return reinterpret_cast<void*>(entry->function);
  }
  return nullptr;
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, unsigned long long flags, int* status) {
  if (status != nullptr) *status = 1;
  // With this in the environment the driver answers as none was seen to do yet, but could.
  if (std::getenv("FAKE_DRIVER_UNEXPORTED_ADDRESSES") != nullptr) {
    *function = reinterpret_cast<void*>(&unexported);
    return kSuccess;
  }
  void* found = address_of(resolve(symbol, cuda_version, flags));
  for (const Future& future : kFutures) {
    if (cuda_version >= kFuture && std::strcmp(symbol, future.request) == 0) found = reinterpret_cast<void*>(future.function);
  }
  if (found == nullptr) return kNotFound;  // and *function stays as it was
  *function = found;
  if (status != nullptr) *status = 0;
  return kSuccess;
}

int cuGetProcAddress(const char* symbol, void** function, int cuda_version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, cuda_version, flags, nullptr);
}
}
