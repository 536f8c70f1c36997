// Which of the machine's GPUs a process sees, by its environment. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simgpu {

struct Uuid {
  std::array<uint8_t, 16> bytes;
};
// "GPU-00112233-4455-...".
std::string to_text(const Uuid& uuid);

// As a container runtime with NVIDIA's hook gives them to a container (NVIDIA_VISIBLE_DEVICES): "all", numbers and UUIDs in any order,
// which come out in the machine's; "none" for no GPU. An empty list and "void" tell the runtime nothing: all. A MIG device brings its GPU.
// Names that no GPU has bring none, where a runtime would not start the container.
std::vector<int> given_by_runtime(std::string_view list, const std::vector<Uuid>& uuids);

// Those of `given` that the driver numbers from 0 on for CUDA (CUDA_VISIBLE_DEVICES): numbers within `given` and beginnings of UUIDs, in
// the list's order, up to the first that names none or several. A GPU that is named twice: none. No list (null): all; an empty one: none.
std::vector<int> chosen_by_program(const char* list, const std::vector<int>& given, const std::vector<Uuid>& uuids);

// The machine's number of the GPU that SIMGPU_MIG divides.
inline constexpr int kMigParent = 0;

// Each library says whether it is CUDA's, which alone heeds CUDA_VISIBLE_DEVICES.
bool is_cuda();

}  // namespace simgpu
