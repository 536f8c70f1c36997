// Texture objects as far as the driver checks them when they are made: the address is aligned; whether memory is there is not looked at.
// Texture references as far as they are given linear memory (recorded).
#include "simgpu/core.h"
#include "simgpu/keep.h"

namespace simgpu {
namespace {

constexpr uint64_t kTextureAlignment = 512;
enum ResourceType : unsigned { kArray = 0, kMipmappedArray = 1, kLinear = 2, kPitch2D = 3 };

// The head of CUDA_RESOURCE_DESC: of linear memory the union begins with the address.
struct ResourceDescription {
  ResourceType type;
  CUdeviceptr address;
};

struct TextureReference {
  CUdeviceptr address = 0;
};

}  // namespace

SIM_API CUresult cuTexRefCreate(TextureReference** out) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = Kept<TextureReference>::make();
  return CUDA_SUCCESS;
}
SIM_API CUresult cuTexRefDestroy(TextureReference* texture) {
  if (texture == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Kept<TextureReference>::drop(texture);
  return CUDA_SUCCESS;
}
// What lies before the next lower aligned address is left to the program's offset.
SIM_API CUresult cuTexRefSetAddress_v2(size_t* offset, TextureReference* texture, CUdeviceptr address, size_t) {
  if (texture == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  texture->address = address / kTextureAlignment * kTextureAlignment;
  if (offset != nullptr) *offset = address % kTextureAlignment;
  return CUDA_SUCCESS;
}
SIM_API CUresult cuTexRefGetAddress_v2(CUdeviceptr* out, const TextureReference* texture) {
  if (texture == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || texture->address == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = texture->address;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuTexObjectCreate(unsigned long long* out, const ResourceDescription* resource, const void* texture, const void*) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr || resource == nullptr || texture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool by_address = resource->type == kLinear || resource->type == kPitch2D;
  if (by_address && (resource->address == 0 || resource->address % kTextureAlignment != 0)) return CUDA_ERROR_INVALID_VALUE;
  *out = here().next_id.fetch_add(1);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuTexObjectDestroy(unsigned long long) { return enter_process(); }

}  // namespace simgpu
