// The driver's exported symbols with their addresses and what cuGetProcAddress knows them by.
#pragma once

#include <span>

namespace simgpu {

struct EntryPoint {
  const char* symbol;
  const char* base;  // the name for cuGetProcAddress
  int version;       // the first CUDA version that means this symbol by the name; 0: none does
  bool per_thread;
  int (*address)();
};

std::span<const EntryPoint> entry_points();
// What a driver newer than that has besides (newer.cc); as a rule none.
std::span<const EntryPoint> more_entry_points();

}  // namespace simgpu
