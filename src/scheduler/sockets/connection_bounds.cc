#include "scheduler/sockets/connection_bounds.h"

#include <algorithm>

#include "scheduler/settings.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// After a pause so much can be read at once: waking up for each message would cost more than the messages.
constexpr int64_t kPauseMessages = 64;

// The user whose own slice or service manager this path lies below, or empty: "/user.slice/user-1000.slice/user@1000.service/...".
std::string user_of_path(std::string_view path) {
  while (!path.empty()) {
    const size_t slash = path.find('/');
    std::string_view folder = path.substr(0, slash);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    for (const auto& [prefix, suffix] : {std::pair<std::string_view, std::string_view>{"user-", ".slice"}, {"user@", ".service"}}) {
      if (!folder.starts_with(prefix) || !folder.ends_with(suffix) || folder.size() <= prefix.size() + suffix.size()) continue;
      const std::string_view uid = folder.substr(prefix.size(), folder.size() - prefix.size() - suffix.size());
      if (uid.find_first_not_of("0123456789") == std::string_view::npos) return std::string(uid);
    }
    // What a container, pod or unit nests below its own folder names nobody.
    if (folder.find("pod") != std::string_view::npos || folder.starts_with("docker") || folder.starts_with("lxc")) return {};
    if (folder.ends_with(".scope") || folder.ends_with(".service")) return {};
  }
  return {};
}

std::string user_slice_of(std::string_view cgroups) {
  while (!cgroups.empty()) {
    const size_t newline = cgroups.find('\n');
    const std::string_view line = cgroups.substr(0, newline);
    cgroups = newline == std::string_view::npos ? std::string_view() : cgroups.substr(newline + 1);
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    if (std::string user = user_of_path(line.substr(second + 1)); !user.empty()) return user;
  }
  return {};
}

}  // namespace

void TokenBucket::fill(policy::Instant now) {
  const policy::Duration passed = std::clamp<policy::Duration>(now - at_, 0, kSecond * 60);
  const int64_t filled = passed * per_second_ / kSecond;
  if (filled == 0) return;
  level_ = std::min(level_ + filled, depth_);
  // What is less than a token stays with the clock.
  at_ = level_ == depth_ || passed < now - at_ ? now : at_ + filled * kSecond / per_second_;
}

policy::Duration TokenBucket::wait(policy::Instant now) {
  fill(now);
  return level_ > 0 ? 0 : (std::min(kPauseMessages, depth_) - level_) * kSecond / per_second_ + 1;
}

Accountable accountable_for(const CgroupReader& reader, std::string_view cgroups, uid_t uid, pid_t pid, uint64_t start_time) {
  Accountable whose;
  if (pid > 0) whose.process = "process " + std::to_string(pid) + ":" + std::to_string(start_time);
  if (const std::string owner = user_slice_of(cgroups); !owner.empty() && owner != "0") {
    whose.user = "user " + owner;
    return whose;
  }
  const std::optional<CgroupIdentity> cgroup = reader.identify(cgroups);
  if (cgroup) whose.tenant = "cgroup " + cgroup->path;
  const bool is_contained = cgroup && cgroup->kind != CgroupIdentity::Kind::kUnit;
  if (!is_contained && uid != 0) whose.user = "user " + std::to_string(uid);
  if (pid == 0 && whose.tenant.empty() && whose.user.empty()) whose.tenant = "root in PID namespaces that are not seen";
  return whose;
}

int64_t cost_of(policy::Duration handled) { return 1 + std::max<policy::Duration>(handled, 0) / bounds::kMessageTimeNs; }

int64_t ConnectionBounds::count_of(const std::string& key) const {
  const auto at = groups_.find(key);
  return at == groups_.end() ? 0 : at->second.connections;
}

ConnectionBounds::Group& ConnectionBounds::group(const std::string& key, policy::Instant now) {
  return groups_.try_emplace(key, Group{0, TokenBucket(bounds::kTenantMessagesPerSecond, bounds::kTenantMessageBurst, now)}).first->second;
}

// Whether it has no connection yet.
bool ConnectionBounds::is_new(const Accountable& whose) const { return whose.process.empty() || count_of(whose.process) == 0; }

Result<void> ConnectionBounds::check_group(const std::string& key, int64_t limit, const std::string& setting) const {
  if (key.empty() || count_of(key) < limit) return {};
  return error_format("%.100s has %lld connections to the scheduler; accepted: up to %lld%s%s", key.c_str(),
                      static_cast<long long>(count_of(key)), static_cast<long long>(limit), setting.empty() ? "" : ", see ",
                      setting.c_str());
}

Result<void> ConnectionBounds::check(const Accountable& whose) const {
  if (auto ok = check_group(whose.process, bounds::kConnectionsPerProcess, ""); !ok) return ok;
  if (auto ok = check_group(whose.tenant, limits_.per_tenant, variable_of("connections_per_tenant")); !ok) return ok;
  if (auto ok = check_group(whose.user, limits_.per_user, variable_of("connections_per_user")); !ok) return ok;
  return check_descriptors(whose);
}

Result<void> ConnectionBounds::check_descriptors(const Accountable& whose) const {
  if (limits_.descriptors == 0 || descriptors() < limits_.descriptors / 4 * 3) return {};
  if (descriptors() + (is_new(whose) ? 2 : 1) > limits_.descriptors) {
    return error_format("the scheduler has %lld connections of %lld processes, as many as its limit of open files allows (LimitNOFILE)",
                        static_cast<long long>(count()), static_cast<long long>(processes_));
  }
  // Nearly all places are taken: those that have few go first.
  return check_group(!whose.tenant.empty() ? whose.tenant : whose.user, bounds::kConnectionsWhenCrowded, "LimitNOFILE of the scheduler");
}

// With its bucket full a group is as one that was never there. Before that, leaving and coming back gains nothing.
void ConnectionBounds::forget_idle(policy::Instant now) {
  if (now - forgot_at_ < kSecond) return;
  forgot_at_ = now;
  std::erase_if(groups_, [now](auto& entry) { return entry.second.connections == 0 && entry.second.messages.is_full(now); });
  std::erase_if(connects_, [now](auto& entry) { return entry.second.is_full(now); });
}

bool ConnectionBounds::may_connect(pid_t process, policy::Instant now) {
  if (process <= 0) return true;  // processes of many tenants
  forget_idle(now);
  TokenBucket& bucket = connects_.try_emplace(process, TokenBucket(limits_.connects_per_second, limits_.connect_burst, now)).first->second;
  if (bucket.wait(now) > 0) {
    ++refused_;
    return false;
  }
  bucket.take(1);
  return true;
}

Result<void> ConnectionBounds::admit(uint64_t connection, const Accountable& whose, policy::Instant now) {
  forget_idle(now);
  if (auto ok = check(whose); !ok) {
    ++refused_;
    return ok;
  }
  if (is_new(whose)) ++processes_;
  for (const std::string* key : {&whose.tenant, &whose.user, &whose.process}) {
    if (!key->empty()) ++group(*key, now).connections;
  }
  connections_.emplace(connection, Connection{whose, TokenBucket(bounds::kMessagesPerSecond, bounds::kMessageBurst, now)});
  return {};
}

void ConnectionBounds::left(uint64_t connection) {
  const auto at = connections_.find(connection);
  if (at == connections_.end()) return;
  const Accountable& whose = at->second.whose;
  for (const std::string* key : {&whose.tenant, &whose.user, &whose.process}) {
    if (const auto group = groups_.find(*key); group != groups_.end()) --group->second.connections;
  }
  if (is_new(whose)) --processes_;  // that was its last
  connections_.erase(at);
}

policy::Duration ConnectionBounds::wait(uint64_t connection, policy::Instant now) {
  const auto at = connections_.find(connection);
  if (at == connections_.end()) return 0;
  policy::Duration wait = at->second.messages.wait(now);
  const Accountable& whose = at->second.whose;
  for (const std::string* key : {&whose.tenant, &whose.user, &whose.process}) {
    if (!key->empty()) wait = std::max(wait, group(*key, now).messages.wait(now));
  }
  if (wait > 0) ++reads_paused_;
  return wait;
}

void ConnectionBounds::charge(uint64_t connection, int64_t cost) {
  const auto at = connections_.find(connection);
  if (at == connections_.end()) return;
  at->second.messages.take(cost);
  const Accountable& whose = at->second.whose;
  for (const std::string* key : {&whose.tenant, &whose.user, &whose.process}) {
    if (const auto group = groups_.find(*key); group != groups_.end()) group->second.messages.take(cost);
  }
}

}  // namespace nvshare::scheduler
