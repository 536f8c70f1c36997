// How a node's GPUs are divided: part of the settings. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace nvshare::kubernetes {

// How GPUs are divided; the same for all GPUs of a node.
struct Division {
  int virtual_devices = 10;                // of each GPU
  int64_t memory_unit = 1LL << 30;         // bytes
  double oversubscription = 1;             // units of a GPU = its physical memory x this / unit
  std::optional<int64_t> physical_memory;  // bytes; each GPU counts as this large, at most as it is
  int64_t default_memory = 0;              // bytes that a container with a GPU has if it asks for no units; 0 = as much as it likes
};

// With another unit: units are worth what they were when a container was granted, whatever is set later. The default of containers that
// ask for none is today's.
Division with_unit(Division division, int64_t memory_unit);
// 1Mi to 1Ti, as the settings take it.
bool is_possible_unit(int64_t bytes);

}  // namespace nvshare::kubernetes
