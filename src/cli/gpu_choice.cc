#include "cli/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/parse.h"
#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::GpuReport;
using protocol::admin::StatusReport;

std::string describe(const StatusReport& status, size_t index) {
  const GpuReport& gpu = status.gpus[index];
  return fmt::format("GPU {} ({}, {})", index, gpu.name.empty() ? gpu.uuid : gpu.name, format_bytes(static_cast<uint64_t>(gpu.total)));
}

GpuChoice choice_of(const StatusReport& status, size_t index) {
  return {status.gpus.size() > 1 ? status.gpus[index].uuid : std::string(), describe(status, index)};
}

// Smaller is emptier.
std::tuple<int64_t, int64_t> load_of(const StatusReport& status, const GpuReport& gpu) {
  int64_t busy = 0;
  int64_t allocated = gpu.foreign;
  for (const auto& client : status.clients) {
    if (client.gpu != gpu.uuid) continue;
    allocated += client.allocated + client.overhead;
    if (client.state != "idle") ++busy;
  }
  return {busy, allocated - gpu.total};
}

}  // namespace

GpuChoice choose_emptiest(const StatusReport& status) {
  if (status.gpus.empty()) return {"", "GPU not known yet"};
  size_t best = 0;
  for (size_t i = 1; i < status.gpus.size(); ++i) {
    if (load_of(status, status.gpus[i]) < load_of(status, status.gpus[best])) best = i;
  }
  GpuChoice choice = choice_of(status, best);
  if (status.gpus.size() > 1) choice.description += fmt::format(", the emptiest of {}", status.gpus.size());
  return choice;
}

Result<GpuChoice> choose_named(const StatusReport& status, const std::string& wanted) {
  if (wanted == "all") return GpuChoice{"", "all GPUs"};
  if (status.gpus.empty()) {
    // The scheduler has no NVML and has seen no client yet: CUDA itself takes indices and UUIDs.
    return GpuChoice{wanted, "GPU " + wanted};
  }
  const auto begins = [&wanted](const GpuReport& gpu) { return !wanted.empty() && gpu.uuid.compare(0, wanted.size(), wanted) == 0; };
  if (const auto found = std::find_if(status.gpus.begin(), status.gpus.end(), begins);
      found != status.gpus.end() && std::count_if(status.gpus.begin(), status.gpus.end(), begins) == 1) {
    return GpuChoice{found->uuid, describe(status, static_cast<size_t>(found - status.gpus.begin()))};
  }
  const auto index = parse_integer(wanted, 0, static_cast<int64_t>(status.gpus.size()) - 1);
  if (index) return GpuChoice{status.gpus[static_cast<size_t>(*index)].uuid, describe(status, static_cast<size_t>(*index))};
  std::string known;
  for (size_t i = 0; i < status.gpus.size(); ++i) known += fmt::format("{}{} ({})", i > 0 ? ", " : "", i, status.gpus[i].uuid);
  return error_format("there is no GPU '%s'; accepted: all, or one of %s", wanted.c_str(), known.c_str());
}

}  // namespace nvshare::cli
