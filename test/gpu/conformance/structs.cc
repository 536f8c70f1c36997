#include "structs.h"

#include <cstdlib>
#include <cstring>

namespace conformance {
namespace {

constexpr const char* kShapeNames[kShapes] = {"memcpy2d",   "memcpy3d",      "memcpy3dpeer", "prop",     "access",     "location",
                                              "poolprops",  "arraydesc",     "array3ddesc",  "resource", "texture",    "memsetnode",
                                              "kernelnode", "kernelnodeold", "hostnode",     "memop",    "memopnode",  "nodeparams",
                                              "allocnode",  "launchconfig",  "instantiate",  "batchdst", "batchsrc",   "batchsize",
                                              "batchattrs", "batchindex",    "copy3dop",     "word",     "handleword", "tensor"};

struct Memcpy2d {
  size_t src_x, src_y;
  unsigned src_type;
  uint64_t src_host, src_device, src_array;
  size_t src_pitch, dst_x, dst_y;
  unsigned dst_type;
  uint64_t dst_host, dst_device, dst_array;
  size_t dst_pitch, width, height;
};
static_assert(sizeof(Memcpy2d) == 128);

struct Memcpy3d {
  size_t src_x, src_y, src_z, src_lod;
  unsigned src_type;
  uint64_t src_host, src_device, src_array, src_context;
  size_t src_pitch, src_height;
  size_t dst_x, dst_y, dst_z, dst_lod;
  unsigned dst_type;
  uint64_t dst_host, dst_device, dst_array, dst_context;
  size_t dst_pitch, dst_height, width, height, depth;
};
static_assert(sizeof(Memcpy3d) == 200);

struct Location {
  int type, id;
};
struct Prop {
  int type, handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};
static_assert(sizeof(Prop) == 32);
struct Access {
  Location location;
  int flags;
};
struct PoolProps {
  int type, handle_types;
  Location location;
  void* win32;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(PoolProps) == 88);
struct ArrayDesc {
  size_t width, height;
  unsigned format, channels;
};
struct Array3dDesc {
  size_t width, height, depth;
  unsigned format, channels, flags;
};
static_assert(sizeof(Array3dDesc) == 40);

struct Resource {
  unsigned type;
  union {
    uint64_t object;
    struct {
      uint64_t address;
      unsigned format, channels;
      size_t bytes;
    } linear;
    struct {
      uint64_t address;
      unsigned format, channels;
      size_t width, height, pitch;
    } pitch;
    int reserved[32];
  } u;
  unsigned flags;
};
static_assert(sizeof(Resource) == 144);

struct Texture {
  unsigned address_mode[3], filter, flags, anisotropy, mipmap_filter;
  float bias, min_clamp, max_clamp, border[4];
  int reserved[12];
};
static_assert(sizeof(Texture) == 104);

struct MemsetNode {
  uint64_t dst;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
  uint64_t context;  // the last one of the second version only
};
struct KernelNode {
  uint64_t function;
  unsigned grid[3], block[3], shared;
  uint64_t params, extra, kernel, context;
};
static_assert(sizeof(KernelNode) == 72);
struct HostNode {
  uint64_t function, data;
};
struct MemOp {
  unsigned operation;
  uint64_t address, value;
  unsigned flags;
  uint64_t alias;
  uint64_t pad;
};
static_assert(sizeof(MemOp) == 48);
struct MemOpNode {
  uint64_t context;
  unsigned count;
  MemOp* ops;
  unsigned flags;
};
struct AllocNode {
  PoolProps props;
  const Access* access;
  size_t access_count, bytes;
  uint64_t address;
};
static_assert(sizeof(AllocNode) == 120);
struct NodeParams {
  unsigned type;
  int reserved0[3];
  uint64_t rest[29];
  uint64_t reserved2;
};
static_assert(sizeof(NodeParams) == 256);
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  uint64_t stream, attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);
struct Instantiate {
  uint64_t flags, stream, error_node;
  unsigned result;
};
struct CopyAttributes {
  unsigned order;
  Location src, dst;
  unsigned flags;
};
static_assert(sizeof(CopyAttributes) == 24);
struct Copy3dOp {
  unsigned src_type;
  uint64_t src_address;
  size_t src_row, src_layer;
  Location src_hint;
  unsigned dst_type;
  uint64_t dst_address;
  size_t dst_row, dst_layer;
  Location dst_hint;
  size_t extent[3];
  unsigned order, flags;
};
static_assert(sizeof(Copy3dOp) == 112);

uint64_t host_counter;

template <class T>
T* take(Storage& storage) {
  return static_cast<T*>(storage.take(sizeof(T)));
}
template <class T>
uint64_t word_of(T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}
unsigned low(int64_t value) { return static_cast<unsigned>(value); }
size_t large(int64_t value) { return static_cast<size_t>(value); }

// 1 host, 2 device, 3 array, 4 unified.
template <class Copy>
void set_ends(Copy& copy, const Arg& arg, const Refs& refs) {
  copy.src_type = low(arg.v[0]);
  copy.dst_type = low(arg.v[1]);
  copy.src_host = refs.hin;
  copy.src_device = refs.src;
  copy.dst_host = refs.hout;
  copy.dst_device = refs.dst;
  // An array is the destination unless the source is one, too.
  copy.src_array = copy.src_type == 3 ? refs.arrays[0] : 0;
  copy.dst_array = copy.dst_type == 3 ? refs.arrays[copy.src_type == 3 ? 1 : 0] : 0;
  copy.src_pitch = copy.dst_pitch = large(arg.v[2]);
  copy.width = large(arg.v[3]);
  copy.height = large(arg.v[4]);
}

Memcpy3d* memcpy3d(const Arg& arg, const Refs& refs, Storage& storage) {
  auto* copy = take<Memcpy3d>(storage);
  set_ends(*copy, arg, refs);
  copy->src_height = copy->dst_height = copy->height;
  copy->depth = large(arg.v[5]);
  return copy;
}

KernelNode* kernel_node(const Refs& refs, Storage& storage) {
  auto* node = take<KernelNode>(storage);
  node->function = refs.function;
  for (int i = 0; i < 3; ++i) {
    node->grid[i] = node->block[i] = 1;
  }
  node->grid[0] = 2;
  node->block[0] = 64;
  node->params = refs.params;
  return node;
}

void fill_memset(MemsetNode& node, const int64_t* v, const Refs& refs) {
  node.dst = refs.dst;
  node.pitch = large(v[0]);
  node.value = low(v[1]);
  node.element = low(v[2]);
  node.width = large(v[3]);
  node.height = large(v[4]);
}

MemOp* mem_op(const int64_t* v, const Refs& refs, Storage& storage) {
  auto* op = take<MemOp>(storage);
  op->operation = low(v[0]);
  op->address = refs.dst;
  op->value = static_cast<uint64_t>(v[1]);
  return op;
}

void fill_alloc(AllocNode& node, const int64_t* v, Storage& storage) {
  node.props.type = 1;
  node.props.location = {1, static_cast<int>(v[0])};
  auto* access = take<Access>(storage);
  *access = {{1, static_cast<int>(v[0])}, 3};
  node.access = access;
  node.access_count = 1;
  node.bytes = large(v[1]);
}

uint64_t node_params(const Arg& arg, const Refs& refs, Storage& storage) {
  auto* params = take<NodeParams>(storage);
  params->type = low(arg.v[0]);
  void* inside = params->rest;
  switch (params->type) {
    case 0:
      std::memcpy(inside, kernel_node(refs, storage), sizeof(KernelNode));
      break;
    case 1: {  // flags, reserved, context, copy
      Arg copy = arg;
      std::memmove(copy.v, arg.v + 1, 6 * sizeof(int64_t));
      params->rest[1] = refs.context;
      std::memcpy(params->rest + 2, memcpy3d(copy, refs, storage), sizeof(Memcpy3d));
      break;
    }
    case 2: {
      MemsetNode node{};
      fill_memset(node, arg.v + 1, refs);
      node.context = refs.context;
      std::memcpy(inside, &node, sizeof(node));
      break;
    }
    case 3:
      params->rest[0] = word_of(&host_function);
      params->rest[1] = word_of(&host_counter);
      break;
    case 4:
      params->rest[0] = refs.graph;
      break;
    case 6:
    case 7:
      params->rest[0] = refs.event;
      break;
    case 11:
      params->rest[0] = refs.ptr;
      break;
    case 12:
      params->rest[0] = refs.context;
      params->rest[1] = 1;
      params->rest[2] = word_of(mem_op(arg.v + 1, refs, storage));
      break;
    default:  // an empty node, and types that are not
      break;
  }
  return word_of(params);
}

Resource* resource(const Arg& arg, const Refs& refs, Storage& storage) {
  auto* r = take<Resource>(storage);
  r->type = low(arg.v[0]);
  if (r->type == 0) {
    r->u.object = refs.arrays[0];
  } else if (r->type == 1) {
    r->u.object = refs.mipmap;
  } else if (r->type == 2) {
    r->u.linear = {refs.ptr, low(arg.v[4]), low(arg.v[5]), large(arg.v[1])};
  } else {
    r->u.pitch = {refs.ptr, low(arg.v[4]), low(arg.v[5]), large(arg.v[1]), large(arg.v[2]), large(arg.v[3])};
  }
  return r;
}

uint64_t word(Storage& storage, uint64_t value) {
  auto* place = take<uint64_t>(storage);
  *place = value;
  return word_of(place);
}

uint64_t build_node(const Arg& arg, const Refs& refs, Storage& storage) {
  const int64_t* v = arg.v;
  switch (static_cast<Shape>(arg.shape)) {
    case kMemsetNode: {
      auto* node = take<MemsetNode>(storage);
      fill_memset(*node, v, refs);
      return word_of(node);
    }
    case kKernelNode:
    case kKernelNodeOld:
      return word_of(kernel_node(refs, storage));
    case kHostNode: {
      auto* node = take<HostNode>(storage);
      *node = {word_of(&host_function), word_of(&host_counter)};
      return word_of(node);
    }
    case kMemOpArray:
      return word_of(mem_op(v, refs, storage));
    case kMemOpNode: {
      auto* node = take<MemOpNode>(storage);
      *node = {refs.context, 1, mem_op(v, refs, storage), 0};
      return word_of(node);
    }
    case kNodeParams:
      return node_params(arg, refs, storage);
    case kAllocNode: {
      auto* node = take<AllocNode>(storage);
      fill_alloc(*node, v, storage);
      return word_of(node);
    }
    case kInstantiate: {
      auto* params = take<Instantiate>(storage);
      params->flags = static_cast<uint64_t>(v[0]);
      params->stream = refs.stream;
      return word_of(params);
    }
    default:
      return 0;
  }
}

uint64_t tensor(int which, Storage& storage) {
  if (which < 2) {
    auto* sizes = static_cast<uint64_t*>(storage.take(2 * sizeof(uint64_t)));
    sizes[0] = which == 0 ? 16 : 64;
    sizes[1] = 4;
    return word_of(sizes);
  }
  auto* elements = static_cast<uint32_t*>(storage.take(2 * sizeof(uint32_t)));
  elements[0] = which == 2 ? 8 : 1;
  elements[1] = which == 2 ? 2 : 1;
  return word_of(elements);
}

uint64_t build_batch(const Arg& arg, const Refs& refs, Storage& storage) {
  const int64_t* v = arg.v;
  switch (static_cast<Shape>(arg.shape)) {
    case kBatchDst:
      return word(storage, refs.dst);
    case kBatchSrc:
      return word(storage, refs.src);
    case kBatchSize:
    case kWord:
      return word(storage, static_cast<uint64_t>(v[0]));
    case kHandleWord:
      return word(storage, refs.context);
    case kBatchIndex:
      return word(storage, 0);
    case kTensor:
      return tensor(static_cast<int>(v[0]), storage);
    case kBatchAttrs: {
      auto* attributes = take<CopyAttributes>(storage);
      attributes->order = low(v[0]);
      return word_of(attributes);
    }
    case kCopy3dOp: {
      auto* op = take<Copy3dOp>(storage);
      op->src_type = op->dst_type = 1;
      op->src_address = refs.src;
      op->dst_address = refs.dst;
      op->extent[0] = large(v[0]);
      op->extent[1] = large(v[1]);
      op->extent[2] = 1;
      op->order = 1;
      return word_of(op);
    }
    default:
      return build_node(arg, refs, storage);
  }
}

}  // namespace

void* Storage::take(size_t size) {
  void* place = bytes + used;
  used += (size + 15) / 16 * 16;
  if (used > sizeof(bytes)) {
    std::abort();
  }
  std::memset(place, 0, size);
  return place;
}

int shape_of(std::string_view name) {
  for (int i = 0; i < kShapes; ++i) {
    if (name == kShapeNames[i]) {
      return i;
    }
  }
  return -1;
}

const char* shape_name(int shape) { return kShapeNames[shape]; }

void host_function(void* counter) { __atomic_fetch_add(static_cast<uint64_t*>(counter), 1, __ATOMIC_RELAXED); }

uint64_t build(const Arg& arg, Refs& refs, Storage& storage) {
  const int64_t* v = arg.v;
  refs.allocates = refs.allocates || arg.shape == kAllocNode;
  switch (static_cast<Shape>(arg.shape)) {
    case kMemcpy2d: {
      auto* copy = take<Memcpy2d>(storage);
      set_ends(*copy, arg, refs);
      return word_of(copy);
    }
    case kMemcpy3d:
      return word_of(memcpy3d(arg, refs, storage));
    case kMemcpy3dPeer: {
      Memcpy3d* copy = memcpy3d(arg, refs, storage);
      copy->src_context = refs.contexts[1];
      copy->dst_context = refs.contexts[0];
      return word_of(copy);
    }
    case kProp: {
      auto* prop = take<Prop>(storage);
      prop->type = static_cast<int>(v[2]);
      prop->handle_types = static_cast<int>(v[1]);
      prop->location = {static_cast<int>(v[3]), static_cast<int>(v[0])};
      return word_of(prop);
    }
    case kAccess: {
      auto* access = take<Access>(storage);
      *access = {{static_cast<int>(v[2]), static_cast<int>(v[0])}, static_cast<int>(v[1])};
      return word_of(access);
    }
    case kLocation: {
      auto* location = take<Location>(storage);
      *location = {static_cast<int>(v[0]), static_cast<int>(v[1])};
      return word_of(location);
    }
    case kPoolProps: {
      auto* props = take<PoolProps>(storage);
      props->type = 1;
      props->handle_types = static_cast<int>(v[1]);
      props->location = {1, static_cast<int>(v[0])};
      props->max_size = large(v[2]);
      return word_of(props);
    }
    case kArrayDesc: {
      auto* desc = take<ArrayDesc>(storage);
      *desc = {large(v[0]), large(v[1]), low(v[2]), low(v[3])};
      return word_of(desc);
    }
    case kArray3dDesc: {
      auto* desc = take<Array3dDesc>(storage);
      *desc = {large(v[0]), large(v[1]), large(v[2]), low(v[3]), low(v[4]), low(v[5])};
      return word_of(desc);
    }
    case kResource:
      return word_of(resource(arg, refs, storage));
    case kTextureDesc: {
      auto* texture = take<Texture>(storage);
      texture->address_mode[0] = texture->address_mode[1] = texture->address_mode[2] = low(v[0]);
      texture->filter = low(v[1]);
      texture->flags = low(v[2]);
      return word_of(texture);
    }
    case kLaunchConfig: {
      auto* config = take<LaunchConfig>(storage);
      for (int i = 0; i < 3; ++i) {
        config->grid[i] = config->block[i] = 1;
      }
      config->grid[0] = low(v[0]);
      config->block[0] = low(v[1]);
      config->stream = refs.stream;
      return word_of(config);
    }
    default:
      return build_batch(arg, refs, storage);
  }
}

}  // namespace conformance
