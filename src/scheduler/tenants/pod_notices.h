// What happened to pods and their owners should know, until the node's agent has asked for it. A happening that repeats is told again
// after a minute at the earliest, with how often it happened. Pure bookkeeping, time is an argument; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "protocol/admin.h"

namespace nvshare::scheduler {

class PodNotices {
 public:
  static constexpr size_t kMost = 64;  // the oldest go first; all are in the log
  static constexpr policy::Duration kInterval = 60'000'000'000;

  // True: it is told now, so a line in the log is due as well.
  bool add(const std::string& uid, const std::string& reason, const std::string& text, policy::Instant now) {
    auto [at, is_new] = all_.try_emplace({uid, reason});
    Entry& entry = at->second;
    ++entry.hidden;
    if (!is_new && now - entry.told_at < kInterval) return false;
    entry.told_at = now;
    // The time of the machine's start: so numbers go on where those of an earlier scheduler ended.
    last_ = std::max(last_ + 1, static_cast<uint64_t>(std::max<policy::Instant>(now, 0)));
    const std::string more =
        entry.hidden > 1 ? "; with it " + std::to_string(entry.hidden) + " times since this was last reported" : std::string();
    entry.notice = {last_, uid, reason, text + more};
    entry.hidden = 0;
    if (all_.size() > kMost) {
      all_.erase(std::min_element(all_.begin(), all_.end(),
                                  [](const auto& a, const auto& b) { return a.second.notice.number < b.second.notice.number; }));
    }
    return true;
  }

  std::vector<protocol::admin::PodNotice> after(uint64_t number) const {
    std::vector<protocol::admin::PodNotice> notices;
    for (const auto& [key, entry] : all_) {
      if (entry.notice.number > number) notices.push_back(entry.notice);
    }
    std::sort(notices.begin(), notices.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
    return notices;
  }

 private:
  struct Entry {
    protocol::admin::PodNotice notice;
    policy::Instant told_at = 0;
    uint64_t hidden = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> all_;  // by pod and reason
  uint64_t last_ = 0;
};

}  // namespace nvshare::scheduler
