#include "cli/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "base/parse.h"
#include "cli/units.h"

namespace nvshare::cli {
namespace {

using protocol::admin::GpuReport;
using protocol::admin::StatusReport;

constexpr int64_t kAlikePart = 16;  // of a GPU's memory: what differs by less is the same

std::string describe(const StatusReport& status, size_t index) {
  const GpuReport& gpu = status.gpus[index];
  return fmt::format("GPU {} ({}, {})", index, gpu.name.empty() ? gpu.uuid : gpu.name, format_bytes(static_cast<uint64_t>(gpu.total)));
}

GpuChoice choice_of(const StatusReport& status, size_t index) {
  return {status.gpus.size() > 1 ? status.gpus[index].uuid : std::string(), describe(status, index)};
}

struct Load {
  int64_t busy = 0;  // clients that run or wait
  int64_t free = 0;  // bytes that nobody has allocated
};

Load load_of(const StatusReport& status, const GpuReport& gpu) {
  Load load{0, gpu.total - gpu.foreign};
  for (const auto& client : status.clients) {
    if (client.gpu != gpu.uuid) continue;
    load.free -= client.allocated + client.overhead;
    if (client.state != "idle") ++load.busy;
  }
  return load;
}

// Runs that live and whose programs have used no GPU yet: where they will is not to be seen.
size_t runs_to_come(const StatusReport& status) {
  return static_cast<size_t>(std::count_if(status.tenants.begin(), status.tenants.end(), [](const auto& tenant) {
    return tenant.kind == "run" && tenant.root != 0 && tenant.clients_ever == 0;
  }));
}

}  // namespace

GpuChoice choose_emptiest(const StatusReport& status) {
  if (status.gpus.empty()) return {"", "GPU not known yet"};
  std::vector<Load> loads;
  for (const GpuReport& gpu : status.gpus) loads.push_back(load_of(status, gpu));
  const auto emptier = [](const Load& a, const Load& b) { return a.busy != b.busy ? a.busy < b.busy : a.free > b.free; };
  const Load best = *std::min_element(loads.begin(), loads.end(), emptier);
  std::vector<size_t> alike;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].busy == best.busy && best.free - loads[i].free <= status.gpus[i].total / kAlikePart) alike.push_back(i);
  }
  GpuChoice choice = choice_of(status, alike[runs_to_come(status) % alike.size()]);
  if (status.gpus.size() > 1) choice.description += fmt::format(", the emptiest of {}", status.gpus.size());
  return choice;
}

namespace {

bool is_mig(const std::string& name) { return name.rfind("MIG-", 0) == 0; }
bool may_be_gpu(const std::string& name) { return parse_integer(name, 0, 1 << 20) || name.rfind("GPU-", 0) == 0; }

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t first = part.find_first_not_of(" \t");
    const size_t last = part.find_last_not_of(" \t");
    parts.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
  }
  if (!list.empty() && list.back() == ',') parts.emplace_back();
  return parts;
}

// By index, UUID or the beginning of exactly one UUID.
std::optional<size_t> find_gpu(const StatusReport& status, const std::string& wanted) {
  const auto begins = [&wanted](const GpuReport& gpu) { return !wanted.empty() && gpu.uuid.compare(0, wanted.size(), wanted) == 0; };
  const auto found = std::find_if(status.gpus.begin(), status.gpus.end(), begins);
  if (found != status.gpus.end() && std::count_if(status.gpus.begin(), status.gpus.end(), begins) == 1)
    return static_cast<size_t>(found - status.gpus.begin());
  const auto index = parse_integer(wanted, 0, static_cast<int64_t>(status.gpus.size()) - 1);
  return index ? std::optional(static_cast<size_t>(*index)) : std::nullopt;
}

std::string describe_all(const StatusReport& status, const std::vector<size_t>& indices) {
  std::string text;
  for (const size_t index : indices) text += (text.empty() ? "" : ", ") + describe(status, index);
  return text;
}

}  // namespace

Result<GpuChoice> choose_named(const StatusReport& status, const std::string& wanted) {
  if (wanted == "all") return GpuChoice{"", "all GPUs"};
  // The scheduler has no NVML and has seen no client yet: CUDA itself takes indices and UUIDs.
  if (status.gpus.empty()) {
    for (const std::string& part : split(wanted)) {
      if (!may_be_gpu(part) && !is_mig(part))
        return error_format("there is no GPU '%.80s'; accepted: all, or a list of indices and UUIDs, such as 0,1", part.c_str());
    }
    return GpuChoice{wanted, "GPU " + wanted};
  }
  std::string visible;
  std::string migs;
  std::vector<size_t> chosen;
  std::vector<std::string> parts = split(wanted);
  if (parts.empty()) parts.emplace_back();
  for (const std::string& part : parts) {
    std::string name = part;
    if (is_mig(part)) {  // slices of a GPU are no devices of their own to the scheduler: CUDA finds them by name
      migs += (migs.empty() ? "MIG device " : ", ") + part;
    } else {
      const auto index = find_gpu(status, part);
      if (!index) {
        std::string known;
        for (size_t i = 0; i < status.gpus.size(); ++i) known += fmt::format("{}{} ({})", i > 0 ? ", " : "", i, status.gpus[i].uuid);
        if (part == "all")
          return error_format("'all' is all GPUs, with no other in '%.160s'; accepted: all, or some of %s", wanted.c_str(), known.c_str());
        return error_format("there is no GPU '%.80s'; accepted: all, or %s%s", part.c_str(), status.gpus.size() > 1 ? "some of " : "",
                            known.c_str());
      }
      if (std::find(chosen.begin(), chosen.end(), *index) != chosen.end())
        return error_format("GPU '%.80s' is named twice in '%.160s'", part.c_str(), wanted.c_str());
      chosen.push_back(*index);
      name = status.gpus[*index].uuid;
    }
    visible += (visible.empty() ? "" : ",") + name;
  }
  if (!migs.empty() && !chosen.empty())
    return error_format("'%.200s' mixes GPUs with MIG devices, which CUDA does not take", wanted.c_str());
  return GpuChoice{visible, migs.empty() ? describe_all(status, chosen) : migs};
}

Result<std::vector<std::string>> gpus_listed(const StatusReport& status, const std::string& list) {
  std::vector<std::string> uuids;
  if (list == "all") {
    for (const GpuReport& gpu : status.gpus) uuids.push_back(gpu.uuid);
    return uuids;
  }
  if (status.gpus.empty()) return uuids;
  for (const std::string& part : split(list)) {
    if (is_mig(part)) return error_format("'%.80s' is a MIG device, which has no turns of its own; accepted: GPUs", part.c_str());
    const auto index = find_gpu(status, part);
    if (!index)
      return error_format("there is no GPU '%.80s'; accepted: indices from 0 to %zu, or UUIDs", part.c_str(), status.gpus.size() - 1);
    uuids.push_back(status.gpus[*index].uuid);
  }
  return uuids;
}

std::string describe_visible(const StatusReport& status, const std::string& value) {
  constexpr const char* kBy = "CUDA_VISIBLE_DEVICES";
  std::vector<size_t> seen;
  for (const std::string& part : split(value)) {
    if (is_mig(part)) return fmt::format("MIG device {} ({})", part, kBy);  // CUDA takes one
    const auto index = find_gpu(status, part);
    if (!index && status.gpus.empty() && may_be_gpu(part)) return fmt::format("GPU {} ({})", value, kBy);
    const bool again = index && std::find(seen.begin(), seen.end(), *index) != seen.end();
    if (again) return fmt::format("no GPU: {} names '{}' twice, which CUDA refuses", kBy, part);
    if (!index) {  // CUDA looks no further
      if (seen.empty()) return fmt::format("no GPU: {} begins with '{}', which CUDA does not know", kBy, part);
      return fmt::format("{} ({} ends at '{}')", describe_all(status, seen), kBy, part);
    }
    seen.push_back(*index);
  }
  if (seen.empty()) return fmt::format("no GPU: {} is empty", kBy);
  return fmt::format("{} ({})", describe_all(status, seen), kBy);
}

}  // namespace nvshare::cli
