#include "simgpu/core.h"

namespace simgpu {
namespace {

struct ErrorName {
  int number;
  const char* name;
};
constexpr ErrorName kErrors[] = {
#define SIM_ERROR(name, number) {number, #name},
#include "simgpu/errors.inc"
#undef SIM_ERROR
};

CUresult look_up(CUresult error, const char** text) {
  for (const ErrorName& known : kErrors) {
    if (known.number != static_cast<int>(error)) continue;
    *text = known.name;
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// Both work without cuInit.
SIM_API CUresult cuGetErrorName(CUresult error, const char** text) { return look_up(error, text); }
SIM_API CUresult cuGetErrorString(CUresult error, const char** text) { return look_up(error, text); }

}  // namespace simgpu
