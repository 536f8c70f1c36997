// The addresses that a call's arguments name.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

using namespace cuda;

using Addresses = std::vector<CUdeviceptr>;

inline void add_named(Addresses& named, CUdeviceptr address) { named.push_back(address); }
template <typename Description>
void add_both_sides(Addresses& named, const Description* copy) {
  if (copy == nullptr) return;
  const bool from_host = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = copy->dstMemoryType == CU_MEMORYTYPE_HOST;
  named.push_back(from_host ? reinterpret_cast<uintptr_t>(copy->srcHost) : copy->srcDevice);
  named.push_back(to_host ? reinterpret_cast<uintptr_t>(copy->dstHost) : copy->dstDevice);
}
inline void add_named(Addresses& named, const CUDA_MEMCPY2D* copy) { add_both_sides(named, copy); }
inline void add_named(Addresses& named, const CUDA_MEMCPY3D* copy) { add_both_sides(named, copy); }
inline void add_named(Addresses& named, const CUDA_MEMCPY3D_PEER* copy) { add_both_sides(named, copy); }
// Of graphs: there a fill of plain memory wants no access, as a copy (measured).
inline void add_named(Addresses& named, const CUDA_MEMSET_NODE_PARAMS* fill) {
  if (fill != nullptr) named.push_back(fill->dst);
}
inline void add_named(Addresses& named, CUgraphNodeParams* node) {
  if (node == nullptr) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    add_both_sides(named, &reinterpret_cast<const CUDA_MEMCPY_NODE_PARAMS*>(node->rest)->copyParams);
  } else if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    add_named(named, reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(node->rest));
  }
}
template <typename Other>
void add_named(Addresses&, Other) {}

template <typename... Arguments>
Addresses named_by(Arguments... arguments) {
  Addresses named;
  (add_named(named, arguments), ...);
  return named;
}
// cuMemcpyBatchAsync
template <typename... Rest>
Addresses named_by(CUdeviceptr* targets, CUdeviceptr* sources, size_t* /*sizes*/, size_t count, Rest...) {
  Addresses named;
  if (targets == nullptr || sources == nullptr) return named;
  named.insert(named.end(), targets, targets + count);
  named.insert(named.end(), sources, sources + count);
  return named;
}
// cuMemcpy3DBatchAsync
template <typename... Rest>
Addresses named_by(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, Rest...) {
  Addresses named;
  for (size_t i = 0; copies != nullptr && i < count; ++i) {
    for (const CUmemcpy3DOperand* each : {&copies[i].src, &copies[i].dst}) {
      if (each->type == CU_MEMCPY_OPERAND_TYPE_POINTER) named.push_back(each->op.ptr.ptr);
    }
  }
  return named;
}

}  // namespace nvshare::interposer
