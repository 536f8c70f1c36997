// What a container's resources ask of GPUs, in the words of nvshare's device plugin, NVIDIA's and HAMi's. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace nvshare::cli::convert {

struct Options {
  uint64_t memory_unit = 1ULL << 30;  // of nvshare.com/gpu-memory: the nodes' NVSHARE_GPU_MEMORY_UNIT
  std::optional<uint64_t> memory;     // bytes for each GPU that no memory is asked of
  std::optional<int64_t> cores;       // percent, likewise
  std::string device_class = "gpu.nvshare.com";
};

// Of each of `count` GPUs. Memory in whole MiB, cores in percent of a GPU's time; none: the whole of it.
struct GpuAsk {
  int64_t count = 0;  // 0: no GPU is asked for, or it is left as it is
  std::optional<uint64_t> memory;
  std::optional<int64_t> cores;
  std::vector<std::string> notes;  // what is not as it was

  bool fits_in(const GpuAsk& other) const;
};

// Whether a resource of that name is one that a conversion takes away.
bool is_gpu_resource(const std::string& name);

// `resources`: names and values as they are written, limits and requests joined. Errors name the resource and the accepted range.
Result<GpuAsk> read_ask(const std::map<std::string, std::string>& resources, const Options& options);

// A name of an object (with dots, at most 253 characters) or of a container (without, at most 63), as Kubernetes accepts it.
bool is_object_name(const std::string& name);
bool is_container_name(const std::string& name);

// "4Gi", "1536Mi": Kubernetes' way to write bytes in whole MiB.
std::string mebibytes(uint64_t bytes);

}  // namespace nvshare::cli::convert
