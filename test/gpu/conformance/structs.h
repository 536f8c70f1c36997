// The driver's structs that calls take, built from a plan's numbers and the objects that the call names. Layouts: cuda.h of CUDA 13.0,
// written out here on purpose, as in ../driver.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "plan.h"

namespace conformance {

// What a call's arguments name, for its structs. 0: nothing.
struct Refs {
  uint64_t dst = 0, src = 0, ptr = 0;
  uint64_t hin = 0, hout = 0;
  uint64_t arrays[2] = {};  // in the order in which the call names them
  int array_count = 0;
  uint64_t mipmap = 0, context = 0, contexts[2] = {}, function = 0, params = 0, stream = 0, event = 0, graph = 0, pool = 0,
           memory_handle = 0;
  int context_count = 0;
  bool allocates = false;  // a node that allocates memory: its graph is not launched
};

// Room for a call's structs: zeroed for each call.
struct Storage {
  alignas(16) unsigned char bytes[4096];
  size_t used = 0;
  void* take(size_t size);
};

enum Shape : uint8_t {
  kMemcpy2d,       // memcpy2d:SRCTYPE:DSTTYPE:PITCH:WIDTH:HEIGHT
  kMemcpy3d,       // memcpy3d:SRCTYPE:DSTTYPE:PITCH:WIDTH:HEIGHT:DEPTH
  kMemcpy3dPeer,   // the same with two contexts
  kProp,           // prop:DEVICE:HANDLETYPES:TYPE:LOCATIONTYPE
  kAccess,         // access:DEVICE:FLAGS:LOCATIONTYPE
  kLocation,       // location:TYPE:ID, by address
  kPoolProps,      // poolprops:DEVICE:HANDLETYPES:MAXSIZE
  kArrayDesc,      // arraydesc:WIDTH:HEIGHT:FORMAT:CHANNELS
  kArray3dDesc,    // array3ddesc:WIDTH:HEIGHT:DEPTH:FORMAT:CHANNELS:FLAGS
  kResource,       // resource:TYPE:WIDTH:HEIGHT:PITCH:FORMAT:CHANNELS
  kTextureDesc,    // texture:ADDRESSMODE:FILTER:FLAGS
  kMemsetNode,     // memsetnode:PITCH:VALUE:ELEMENT:WIDTH:HEIGHT
  kKernelNode,     // kernelnode
  kKernelNodeOld,  // kernelnodeold, without kern and ctx
  kHostNode,       // hostnode
  kMemOpArray,     // memop:OPERATION:VALUE, an array of one
  kMemOpNode,      // memopnode:OPERATION:VALUE
  kNodeParams,     // nodeparams:TYPE and what its struct has
  kAllocNode,      // allocnode:DEVICE:BYTES
  kLaunchConfig,   // launchconfig:GRID:BLOCK
  kInstantiate,    // instantiate:FLAGS
  kBatchDst,       // batchdst, batchsrc, batchsize:BYTES, batchattrs:ORDER, batchindex: arrays of one
  kBatchSrc,
  kBatchSize,
  kBatchAttrs,
  kBatchIndex,
  kCopy3dOp,    // copy3dop:WIDTH:HEIGHT
  kWord,        // word:VALUE, the address of a 64-bit word
  kHandleWord,  // handleword, the address of a word with the call's context
  kTensor,      // tensor:WHICH, of a tensor map of 4 rows of 64 bytes: 0 its sizes, 1 its pitches, 2 its box, 3 its steps
  kShapes
};

int shape_of(std::string_view name);  // -1: none
const char* shape_name(int shape);
uint64_t build(const Arg& arg, Refs& refs, Storage& storage);

// What host nodes and callbacks do: count.
void host_function(void* counter);

}  // namespace conformance
