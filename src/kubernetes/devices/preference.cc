#include "kubernetes/devices/preference.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace nvshare::kubernetes {
namespace {

struct Choice {
  const GpuLoad* load = nullptr;
  std::vector<std::string> free_ids;  // the last one goes first
  int taken = 0;
};

// The smaller, the better.
auto rank(const Choice& choice) {
  return std::make_tuple(choice.taken, choice.load->healthy ? 0 : 1, -choice.load->bytes_free(), choice.load->devices_listed,
                         choice.load->core_listed);
}

bool shorter_or_smaller(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

}  // namespace

std::vector<std::string> prefer_gpus(const std::vector<GpuLoad>& loads, const std::vector<std::string>& available,
                                     const std::vector<std::string>& must, int size) {
  std::vector<Choice> choices(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) choices[i].load = &loads[i];
  auto choice_of = [&](const std::string& id) -> Choice* {
    auto uuid = gpu_of(id);
    auto found = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) { return uuid && choice.load->uuid == *uuid; });
    return found == choices.end() ? nullptr : &*found;
  };
  std::vector<std::string> chosen;
  std::set<std::string> is_chosen;
  for (const std::string& id : must) {
    if (static_cast<int>(chosen.size()) >= size || !is_chosen.insert(id).second) continue;
    chosen.push_back(id);
    if (Choice* choice = choice_of(id)) ++choice->taken;
  }
  for (const std::string& id : available) {
    Choice* choice = choice_of(id);
    if (choice != nullptr && is_chosen.count(id) == 0) choice->free_ids.push_back(id);
  }
  for (Choice& choice : choices) std::sort(choice.free_ids.rbegin(), choice.free_ids.rend(), shorter_or_smaller);
  while (static_cast<int>(chosen.size()) < size) {
    Choice* best = nullptr;
    for (Choice& choice : choices) {
      if (!choice.free_ids.empty() && (best == nullptr || rank(choice) < rank(*best))) best = &choice;
    }
    if (best == nullptr) break;
    chosen.push_back(std::move(best->free_ids.back()));
    best->free_ids.pop_back();
    ++best->taken;
  }
  return chosen;
}

std::vector<std::string> prefer_units(std::vector<std::string> available, const std::vector<std::string>& must, int size) {
  std::vector<std::string> chosen(must.begin(), must.begin() + std::min<ptrdiff_t>(std::max(size, 0), std::ssize(must)));
  std::set<std::string> is_chosen(chosen.begin(), chosen.end());
  std::sort(available.begin(), available.end(), shorter_or_smaller);
  for (std::string& id : available) {
    if (static_cast<int>(chosen.size()) >= size) break;
    if (is_chosen.insert(id).second) chosen.push_back(std::move(id));
  }
  return chosen;
}

}  // namespace nvshare::kubernetes
