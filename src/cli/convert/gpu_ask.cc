#include "cli/convert/gpu_ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/parse.h"

namespace nvshare::cli::convert {
namespace {

constexpr uint64_t kMebibyte = 1ULL << 20;
constexpr uint64_t kMemoryMost = 1ULL << 50;  // bytes of one GPU: more is a mistake
constexpr int64_t kCountMost = 32;            // devices of one claim

constexpr const char* kGpu = "nvshare.com/gpu";
constexpr const char* kMemory = "nvshare.com/gpu-memory";
constexpr const char* kCores = "nvshare.com/gpu-core";
constexpr const char* kNvidia = "nvidia.com/gpu";
constexpr const char* kShared = "nvidia.com/gpu.shared";
constexpr const char* kHamiMemory = "nvidia.com/gpumem";
constexpr const char* kHamiPercent = "nvidia.com/gpumem-percentage";
constexpr const char* kHamiCores = "nvidia.com/gpucores";
constexpr std::array kNames = {kGpu, kMemory, kCores, kNvidia, kShared, kHamiMemory, kHamiPercent, kHamiCores};

// Of a number of resources the value, 0 where it is not asked for.
class Numbers {
 public:
  explicit Numbers(const std::map<std::string, std::string>& resources) : resources_(resources) {}

  int64_t of(const char* name, int64_t most) {
    const auto found = resources_.find(name);
    if (found == resources_.end() || problem_) return 0;
    const auto number = parse_integer(found->second, 0, most);
    if (number) return *number;
    const bool chart = found->second.empty() || found->second.find("{{") != std::string::npos;
    problem_ = error_format("%s: '%.60s'%s; accepted: a whole number from 0 to %lld", name, found->second.c_str(),
                            chart ? " (of a chart, convert what 'helm template' writes)" : "", static_cast<long long>(most));
    return 0;
  }
  bool has(const char* name) const { return resources_.count(name) != 0; }
  void refuse(const Error& error) {
    if (!problem_) problem_ = error;
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  const std::map<std::string, std::string>& resources_;
  std::optional<Error> problem_;
};

uint64_t whole_mebibytes(uint64_t bytes) { return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte; }

// The plugin gives a container with several GPUs an even part on each.
void ask_of_plugin(Numbers& numbers, const Options& options, GpuAsk& ask) {
  ask.count = numbers.of(kGpu, kCountMost);
  const int64_t units = numbers.of(kMemory, static_cast<int64_t>(kMemoryMost / options.memory_unit) * kCountMost);
  const int64_t cores = numbers.of(kCores, 100 * kCountMost);
  if (ask.count == 0) {
    if (units > 0 || cores > 0)
      numbers.refuse(error_format("%s without %s: no GPU is asked for; accepted: 1 to %lld of it", units > 0 ? kMemory : kCores, kGpu,
                                  static_cast<long long>(kCountMost)));
    return;
  }
  const auto count = static_cast<uint64_t>(ask.count);
  if (units > 0) ask.memory = whole_mebibytes((static_cast<uint64_t>(units) * options.memory_unit + count - 1) / count);
  if (cores > 100 * ask.count)
    numbers.refuse(error_format("%s: %lld; accepted: 1 to 100 for each of its GPUs", kCores, static_cast<long long>(cores)));
  if (cores > 0) ask.cores = std::max<int64_t>(cores / ask.count, 1);
  if (cores > 0 && cores % ask.count != 0)
    ask.notes.push_back(fmt::format("{} % of compute over {} GPUs is {} % of each: whole numbers only", cores, ask.count, *ask.cores));
}

// HAMi's amounts are for each GPU; without a number of GPUs it gives one.
void ask_of_hami(Numbers& numbers, GpuAsk& ask) {
  const int64_t memory = numbers.of(kHamiMemory, static_cast<int64_t>(kMemoryMost / kMebibyte));
  const int64_t cores = numbers.of(kHamiCores, 100);
  const int64_t percent = numbers.of(kHamiPercent, 100);
  ask.count = numbers.has(kNvidia) ? numbers.of(kNvidia, kCountMost) : 1;
  if (memory > 0) ask.memory = static_cast<uint64_t>(memory) * kMebibyte;
  if (cores > 0) ask.cores = cores;
  if (percent > 0 && memory == 0)
    ask.notes.push_back(fmt::format("{}: {} is left out: a claim says bytes, not percent of a GPU's memory", kHamiPercent, percent));
}

void fill_in(const Options& options, GpuAsk& ask) {
  if (!ask.memory && options.memory) ask.memory = whole_mebibytes(*options.memory);
  if (!ask.cores) ask.cores = options.cores;
  if (!ask.memory && !ask.cores) {
    ask.notes.push_back("no memory and no cores are asked for: the claim takes whole GPUs; --memory and --cores say what it is to have");
  } else if (!ask.memory) {
    ask.notes.push_back("no memory is asked for: the claim takes all of a GPU's, so no other fits beside it; --memory says how much");
  } else if (!ask.cores) {
    ask.notes.push_back("no cores are asked for: the claim takes 100 % of a GPU, so no other fits beside it; --cores says how many");
  }
}

}  // namespace

bool GpuAsk::fits_in(const GpuAsk& other) const {
  return count <= other.count && (!other.memory || (memory && *memory <= *other.memory)) &&
         (!other.cores || (cores && *cores <= *other.cores));
}

bool is_gpu_resource(const std::string& name) { return std::find(kNames.begin(), kNames.end(), name) != kNames.end(); }

Result<GpuAsk> read_ask(const std::map<std::string, std::string>& resources, const Options& options) {
  GpuAsk ask;
  Numbers numbers(resources);
  const bool plugin = numbers.has(kGpu) || numbers.has(kMemory) || numbers.has(kCores);
  const bool hami = numbers.has(kHamiMemory) || numbers.has(kHamiCores) || numbers.has(kHamiPercent);
  const bool nvidia = numbers.has(kNvidia) || numbers.has(kShared);
  if (plugin && (hami || nvidia)) return error_format("%s beside nvidia.com/...: which of them is meant?", kGpu);
  if (plugin) {
    ask_of_plugin(numbers, options, ask);
  } else if (hami) {
    ask_of_hami(numbers, ask);
  } else if (nvidia) {
    const int64_t count = numbers.of(kNvidia, kCountMost) + numbers.of(kShared, kCountMost);
    if (options.memory || options.cores) {
      ask.count = count;
    } else if (count > 0) {
      ask.notes.push_back(
          fmt::format("{} is left as it is: it may be a whole GPU or a part of one in time; --memory and --cores say what it is to have",
                      numbers.has(kNvidia) ? kNvidia : kShared));
    }
  }
  if (numbers.problem()) return *numbers.problem();
  if (ask.count > 0) fill_in(options, ask);
  return ask;
}

bool is_object_name(const std::string& name) {
  if (name.empty() || name.size() > 253 || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") != std::string::npos)
    return false;
  return name.find_first_of("-.") != 0 && name.find_last_of("-.") != name.size() - 1;
}

bool is_container_name(const std::string& name) { return name.size() <= 63 && is_object_name(name) && name.find('.') == std::string::npos; }

std::string mebibytes(uint64_t bytes) {
  if (bytes % (1ULL << 40) == 0) return fmt::format("{}Ti", bytes >> 40);
  if (bytes % (1ULL << 30) == 0) return fmt::format("{}Gi", bytes >> 30);
  return fmt::format("{}Mi", bytes >> 20);
}

}  // namespace nvshare::cli::convert
