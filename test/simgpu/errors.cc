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

// What an H200's driver says of them; of others their names.
constexpr ErrorName kTexts[] = {
    {0, "no error"},
    {2, "out of memory"},
    {101, "invalid device ordinal"},
    {102, "device doesn't have valid Grid license"},
    {213, "resource not mapped as pointer"},
    {300, "device kernel image is invalid"},
    {304, "OS call failed or operation not supported on this OS"},
    {401, "the operation cannot be performed in the present state"},
    {710, "device-side assert triggered"},
    {716, "misaligned address"},
    {801, "operation not supported"},
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
SIM_API CUresult cuGetErrorString(CUresult error, const char** text) {
  const CUresult result = look_up(error, text);
  for (const ErrorName& known : kTexts) {
    if (known.number == static_cast<int>(error)) *text = known.name;
  }
  return result;
}

}  // namespace simgpu
