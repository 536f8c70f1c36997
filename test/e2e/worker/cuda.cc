#include "e2e/worker/cuda.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

extern "C" {
#define E2E_DECLARE(name) decltype(nvshare::cuda::api::name) name;
E2E_CUDA_CALLS(E2E_DECLARE)
decltype(nvshare::cuda::api::cuGetProcAddress_v2) cuGetProcAddress_v2;
#undef E2E_DECLARE
}

namespace nvshare::e2e {
namespace {

Cuda table;

constexpr int kCudaVersion = 13000;

// "cuMemAlloc_v2" -> "cuMemAlloc": what a program asks cuGetProcAddress for.
std::string plain_name(std::string name) {
  if (name.size() > 3 && name.compare(name.size() - 3, 3, "_v2") == 0) name.resize(name.size() - 3);
  return name;
}

void* lookup(Reach reach, const char* name, void* linked) {
  void* found = nullptr;
  switch (reach) {
    case Reach::kLink:
      return linked;
    case Reach::kDlsym: {
      static void* const kLibrary = dlopen("libcuda.so.1", RTLD_NOW);
      found = dlsym(kLibrary, name);
      break;
    }
    case Reach::kProcAddress: {
      CUdriverProcAddressQueryResult status{};
      check(::cuGetProcAddress_v2(plain_name(name).c_str(), &found, kCudaVersion, 0, &status), name);
      break;
    }
  }
  if (found == nullptr) fail(kExitUnexpected, "no %s in the driver", name);
  return found;
}

}  // namespace

const Cuda& cuda() { return table; }

Reach reach_named(const std::string& name) {
  if (name == "link") return Reach::kLink;
  if (name == "dlsym") return Reach::kDlsym;
  if (name == "proc") return Reach::kProcAddress;
  fail(kExitUsage, "--reach is '%s'; it may be link, dlsym or proc", name.c_str());
}

void open_cuda(Reach reach) {
#define E2E_LOOKUP(name) table.name = reinterpret_cast<decltype(table.name)>(lookup(reach, #name, reinterpret_cast<void*>(&::name)));
  E2E_CUDA_CALLS(E2E_LOOKUP)
#undef E2E_LOOKUP
  check(table.cuInit(0), "cuInit");
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(kExitCudaError, "CUDA error %d (%s) of %s", static_cast<int>(result), name_of(result), what);
}

void fail(int status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::printf("FAILED: %s\n", text);
  std::fflush(stdout);
  _exit(status);
}

Kernels load_kernels() {
  CUmodule module = nullptr;
  check(cuda().cuModuleLoadData(&module, "sim"), "cuModuleLoadData");
  auto function = [&](const char* name) {
    CUfunction found = nullptr;
    check(cuda().cuModuleGetFunction(&found, module, name), name);
    return found;
  };
  return {function("sim_fill"),     function("sim_mix"),  function("sim_mix_slow"), function("sim_add"),
          function("sim_checksum"), function("sim_spin"), function("sim_noop"),     function("sim_meet")};
}

}  // namespace nvshare::e2e
