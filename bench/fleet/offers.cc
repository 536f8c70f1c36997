#include "fleet/offers.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/resource_slices.h"

namespace nvshare::fleet {
namespace {

using kubernetes::dra::Json;

int64_t amount(const Json& text) {
  auto parsed = kubernetes::dra::parse_quantity(text.get<std::string>());
  return parsed ? *parsed : 0;
}

Capacity capacity_of(const Json& published) {
  const Json& policy = published.at("requestPolicy");
  const Json& range = policy.at("validRange");
  return {amount(published.at("value")), amount(policy.at("default")), amount(range.at("min")), amount(range.at("max")),
          amount(range.at("step"))};
}

}  // namespace

std::optional<int64_t> Capacity::taken_by(std::optional<int64_t> asked) const {
  const int64_t wanted = std::max(asked.value_or(whole), least);
  const int64_t rounded = least + (wanted - least + step - 1) / step * step;
  if (rounded > most) return std::nullopt;
  return rounded;
}

Rules rules_of(int64_t gpu_memory, double oversubscription, bool exclusive) {
  kubernetes::dra::DeviceFacts facts;
  facts.gpu.uuid = "GPU-00000000-0000-0000-0000-000000000000";
  facts.gpu.physical = gpu_memory;
  kubernetes::Division division;
  division.oversubscription = oversubscription;
  auto model = kubernetes::dra::model_of(facts, division);
  if (!model) std::abort();
  const Json device = kubernetes::dra::device_json(*model);
  return {!exclusive && device.value("allowMultipleAllocations", false), capacity_of(device.at("capacity").at("memory")),
          capacity_of(device.at("capacity").at("cores"))};
}

Offers::Offers(const Rules& rules, int nodes, int gpus_per_node)
    : rules_(rules), gpus_per_node_(gpus_per_node), taken_(static_cast<size_t>(nodes) * static_cast<size_t>(gpus_per_node)) {}

std::optional<Offers::Ask> Offers::ask_of(const Job& job) const {
  const bool whole = !rules_.shared;
  const auto memory = rules_.memory.taken_by(whole ? std::nullopt : std::optional(job.memory_asked));
  const auto cores = rules_.cores.taken_by(whole ? std::nullopt : std::optional<int64_t>(job.cores_asked));
  if (!memory || !cores) return std::nullopt;
  return Ask{*memory, *cores};
}

bool Offers::fits(const Taken& taken, const Ask& ask) const {
  if (!rules_.shared) return taken.claims == 0;
  return taken.memory + ask.memory <= rules_.memory.value && taken.cores + ask.cores <= rules_.cores.value;
}

std::vector<int> Offers::place_on(int node, const Job& job) {
  const auto ask = ask_of(job);
  std::vector<int> found;
  if (!ask) return found;
  const int first = node * gpus_per_node_;
  for (int gpu = first; gpu < first + gpus_per_node_ && static_cast<int>(found.size()) < job.gpus; ++gpu) {
    if (fits(taken_[static_cast<size_t>(gpu)], *ask)) found.push_back(gpu);
  }
  if (static_cast<int>(found.size()) < job.gpus) return {};
  for (const int gpu : found) {
    Taken& taken = taken_[static_cast<size_t>(gpu)];
    taken.memory += ask->memory;
    taken.cores += ask->cores;
    ++taken.claims;
  }
  return found;
}

std::vector<int> Offers::place(const Job& job) {
  const int nodes = static_cast<int>(taken_.size()) / gpus_per_node_;
  for (int node = 0; node < nodes; ++node) {
    std::vector<int> found = place_on(node, job);
    if (!found.empty()) return found;
  }
  return {};
}

void Offers::give_back(const Job& job, const std::vector<int>& gpus) {
  const auto ask = ask_of(job);
  for (const int gpu : gpus) {
    Taken& taken = taken_[static_cast<size_t>(gpu)];
    taken.memory -= ask->memory;
    taken.cores -= ask->cores;
    --taken.claims;
  }
}

bool Offers::has_room(int node) const {
  const auto first = taken_.begin() + static_cast<std::ptrdiff_t>(node) * gpus_per_node_;
  return std::any_of(first, first + gpus_per_node_, [&](const Taken& taken) { return fits(taken, {kGiB, 10}); });
}

bool Offers::holds() const {
  return std::all_of(taken_.begin(), taken_.end(), [&](const Taken& taken) {
    const bool sums = taken.memory <= rules_.memory.value && taken.cores <= rules_.cores.value && taken.memory >= 0 && taken.cores >= 0;
    return sums && (rules_.shared || taken.claims <= 1);
  });
}

}  // namespace nvshare::fleet
