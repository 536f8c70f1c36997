// Which of the devices that are free a container should get. Pure functions, microseconds to a few milliseconds. Advice only: the kubelet
// may do otherwise, and an error would fail the pod, so there is none.
#pragma once

#include <string>
#include <vector>

#include "kubernetes/devices/device_allocations.h"

namespace nvshare::kubernetes {

// Virtual GPUs: `must` first, then one after the other on the GPU that the container has fewest of, of those the one with the most free
// memory, then the one with the fewest virtual GPUs in use. At most `size` IDs.
std::vector<std::string> prefer_gpus(const std::vector<GpuLoad>& loads, const std::vector<std::string>& available,
                                     const std::vector<std::string>& must, int size);

// Units: `must`, then the first ones by name, so that the last ones stay free for those that get lost with a GPU.
std::vector<std::string> prefer_units(std::vector<std::string> available, const std::vector<std::string>& must, int size);

}  // namespace nvshare::kubernetes
