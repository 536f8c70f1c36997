// Which processes live, each looked up once: for a list of things that many processes left behind. For one moment only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace nvshare::scheduler {

class LivingProcesses {
 public:
  using IsAlive = std::function<bool(pid_t pid, uint64_t start_time)>;
  explicit LivingProcesses(IsAlive is_alive) : is_alive_(std::move(is_alive)) {}

  bool has(pid_t pid, uint64_t start_time) {
    const auto [at, is_new] = known_.try_emplace({pid, start_time}, true);
    if (is_new) at->second = is_alive_(pid, start_time);
    return at->second;
  }
  size_t looked_up() const { return known_.size(); }

 private:
  IsAlive is_alive_;
  std::map<std::pair<pid_t, uint64_t>, bool> known_;
};

}  // namespace nvshare::scheduler
