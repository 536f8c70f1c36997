// The driver's structs that describe copies and graph nodes, as cuda.h of CUDA 13.0 has them, and makers of the usual ones.
#pragma once

#include "answers/answers.h"

namespace answers {

enum MemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2, kUnifiedMemory = 4 };

struct Place3D {
  size_t x, y, z, level;
  MemoryType type;
  const void* host;
  Address device;
  void* array;
  void* reserved;  // in the peer variant: the context
  size_t pitch, height;
};
struct Copy3D {
  Place3D from, to;
  size_t width, height, depth;
};
static_assert(sizeof(Copy3D) == 200);

struct Copy2D {
  size_t from_x, from_y;
  MemoryType from_type;
  const void* from_host;
  Address from_device;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  MemoryType to_type;
  void* to_host;
  Address to_device;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};
static_assert(sizeof(Copy2D) == 128);

struct MemsetNode {
  Address address;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
};
struct MemsetNodeWithContext {
  Address address;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
  Context context;
};
struct CopyNode {
  int flags, reserved;
  Context context;
  Copy3D copy;
};

inline constexpr int kWriteValue32 = 2;
union MemOp {
  struct {
    int operation;
    Address address;
    union {
      unsigned value;
      unsigned long long value64;
    };
    unsigned flags;
    Address alias;
  } write;
  unsigned long long pad[6];
};
static_assert(sizeof(MemOp) == 48);
struct BatchMemOpNode {
  Context context;
  unsigned count;
  MemOp* operations;
  unsigned flags;
};

enum NodeType : int { kMemcpyNode = 1, kMemsetNode = 2, kMemOpsNode = 12 };
struct NodeParameters {
  NodeType type;
  int reserved0[3];
  union {
    long long rest[29];
    MemsetNodeWithContext fill;
    CopyNode copy;
    BatchMemOpNode memops;
  } of;
  long long reserved;
};
static_assert(sizeof(NodeParameters) == 256);

struct UpdateResult {
  unsigned result;
  Node error_node, error_from_node;
};

inline Copy3D line(Address to, Address from, size_t bytes) {
  Copy3D copy{};
  copy.from.type = copy.to.type = kDeviceMemory;
  copy.from.device = from;
  copy.to.device = to;
  copy.width = bytes;
  copy.height = copy.depth = 1;
  return copy;
}
inline Copy3D unified_line(Address to, Address from, size_t bytes) {
  Copy3D copy = line(to, from, bytes);
  copy.from.type = copy.to.type = kUnifiedMemory;
  return copy;
}
inline Copy3D line_from_host(Address to, const void* from, size_t bytes) {
  Copy3D copy = line(to, 0, bytes);
  copy.from.type = kHostMemory;
  copy.from.host = from;
  return copy;
}
inline Copy3D line_to_host(void* to, Address from, size_t bytes) {
  Copy3D copy = line(0, from, bytes);
  copy.to.type = kHostMemory;
  copy.to.host = to;
  return copy;
}
inline Copy3D rows(Address to, size_t to_pitch, Address from, size_t from_pitch, size_t width, size_t height) {
  Copy3D copy = line(to, from, width);
  copy.height = height;
  copy.from.pitch = from_pitch;
  copy.from.height = copy.to.height = height;
  copy.to.pitch = to_pitch;
  return copy;
}

}  // namespace answers
