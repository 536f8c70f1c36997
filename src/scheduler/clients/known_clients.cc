#include "scheduler/clients/known_clients.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "scheduler/persisted_file.h"

namespace nvshare::scheduler {
namespace {

constexpr policy::ClientId kIdMax = policy::ClientId{1} << 53;  // 1, 2, 3, ...: no scheduler comes so far
constexpr int64_t kAmountMax = int64_t{1} << 53;                // bytes; a lease that is no bound is 2^50

bool is_amount(int64_t bytes) { return bytes >= 0 && bytes <= kAmountMax; }

}  // namespace

KnownClients::KnownClients(std::string file, StartTimeOf start_time) : file_(std::move(file)), start_time_(std::move(start_time)) {
  if (!file_.empty()) read();
}

policy::ClientId KnownClients::find_missing(policy::ClientId claimed, pid_t pid, uint64_t start_time, const std::string& gpu) const {
  const auto is_it = [&](const KnownClient& missing) {
    return missing.pid == pid && missing.start_time == start_time && missing.gpu == gpu;
  };
  if (const auto said = missing_.find(claimed); said != missing_.end() && is_it(said->second)) return claimed;  // nearly always
  policy::ClientId latest = 0;
  for (auto at = missing_by_pid_.lower_bound({pid, 0}); at != missing_by_pid_.end() && at->first == pid; ++at) {
    if (is_it(missing_.at(at->second))) latest = at->second;
  }
  return latest;
}

void KnownClients::put_missing(policy::ClientId id, const KnownClient& client) {
  take_missing(id);
  missing_[id] = client;
  missing_by_pid_.insert({client.pid, id});
}

bool KnownClients::take_missing(policy::ClientId id) {
  const auto at = missing_.find(id);
  if (at == missing_.end()) return false;
  missing_by_pid_.erase({at->second.pid, id});
  missing_.erase(at);
  return true;
}

policy::ClientId KnownClients::join(policy::ClientId claimed, const KnownClient& client) {
  policy::ClientId id = 0;
  auto known = missing_.find(claimed);
  if (known != missing_.end() && known->second.pid == client.pid && known->second.start_time == client.start_time &&
      known->second.gpu == client.gpu) {
    id = claimed;
    take_missing(id);
  } else {
    id = next_++;
  }
  present_[id] = client;
  append(id, client);
  return id;
}

void KnownClients::leave(policy::ClientId id) {
  if (present_.erase(id) > 0) append("left " + std::to_string(id) + "\n", 1);
  dirty_.erase(id);
}

void KnownClients::depart(policy::ClientId id) {
  auto client = present_.extract(id);
  if (client.empty()) return;
  const KnownClient& departed = departed_[id] = client.mapped();
  if (dirty_.erase(id) > 0) append(id, departed);  // which may write all of them anew
}

void KnownClients::end(policy::ClientId id) {
  const auto client = missing_.find(id);
  if (client == missing_.end()) return;
  ended_.insert(*client);
  take_missing(id);
}

void KnownClients::forget(policy::ClientId id) {
  const size_t erased = (take_missing(id) ? 1 : 0) + ended_.erase(id) + departed_.erase(id);
  if (erased > 0) append("left " + std::to_string(id) + "\n", 1);
}

void KnownClients::keep_lease(policy::ClientId id, int64_t lease, int64_t charged) {
  const auto at = present_.find(id);
  if (at == present_.end()) return;
  KnownClient& client = at->second;
  const int64_t bound = (lease + kLeaseStep - 1) / kLeaseStep * kLeaseStep;
  if (bound == client.lease && std::abs(charged - client.charged) < kLeaseStep) return;
  const bool now = bound > client.lease;
  client.lease = bound;
  client.charged = charged;
  dirty_.insert(id);
  if (!now) return;
  append(id, client);
  dirty_.erase(id);
}

void KnownClients::keep_on_gpu(policy::ClientId id, int64_t on_gpu, bool may_lower) {
  const auto at = present_.find(id);
  if (at == present_.end()) return;
  KnownClient& client = at->second;
  const int64_t bound = std::min((on_gpu + kLeaseStep - 1) / kLeaseStep * kLeaseStep, kAmountMax);
  if (bound == client.on_gpu || (bound < client.on_gpu && !may_lower)) return;
  const bool now = bound > client.on_gpu;
  client.on_gpu = bound;
  if (!now) {
    dirty_.insert(id);
    return;
  }
  append(id, client);
  dirty_.erase(id);
}

namespace {

std::string line_of(policy::ClientId id, const KnownClient& client) {
  return fmt::format("client {} {} {} {} {} {} {} {} {}\n", id, client.pid, client.start_time, client.tenant,
                     client.gpu.empty() ? "-" : client.gpu, client.lease, client.own_limit, client.charged, client.on_gpu);
}

}  // namespace

void KnownClients::keep_up() {
  std::string lines;
  const std::set<policy::ClientId> dirty = std::exchange(dirty_, {});
  for (const policy::ClientId id : dirty) lines += line_of(id, present_.at(id));
  if (!dirty.empty()) append(lines, dirty.size());
}

// A later line about a client stands for the earlier ones. The file is written anew once most of its lines say nothing any more.
void KnownClients::append(policy::ClientId id, const KnownClient& client) { append(line_of(id, client), 1); }

void KnownClients::append(const std::string& lines, size_t count) {
  constexpr size_t kLinesAtLeast = 64;
  appended_ += count;
  if (appended_ > present_.size() + missing_.size() + ended_.size() + departed_.size() + kLinesAtLeast || !is_there(end_)) return write();
  ssize_t wrote = -1;
  do {
    wrote = ::write(end_.get(), lines.data(), lines.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote != static_cast<ssize_t>(lines.size())) write();
}

// Lines "next ID", "left ID" and "client ID PID START_TIME TENANT GPU LEASE OWN_LIMIT CHARGED ON_GPU"; releases before this one wrote no
// ON_GPU.
void KnownClients::read() {
  Result<std::optional<std::string>> content = read_persisted_file(file_);
  if (!content) {
    problem_ = std::string(content.error().text) + "; the clients of the previous scheduler are not known";
    return;
  }
  std::istringstream stream(content->value_or(""));
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    std::istringstream fields(line);
    std::string kind;
    policy::ClientId id = 0;
    KnownClient client;
    fields >> kind >> id;
    // A write that was cut off ends in half a line, whose last figure would be another one.
    bool good = fields && id != 0 && id < kIdMax && !stream.eof();
    if (good && kind == "next") {
      next_ = std::max(next_, id);
    } else if (good && kind == "left") {
      take_missing(id);
      ended_.erase(id);
      next_ = std::max(next_, id + 1);
    } else if (good && kind == "client") {
      fields >> client.pid >> client.start_time >> client.tenant >> client.gpu >> client.lease >> client.own_limit >> client.charged;
      if (client.gpu == "-") client.gpu.clear();
      good = fields && client.start_time != 0 && is_amount(client.lease) && is_amount(client.own_limit) && is_amount(client.charged);
      if (good && !(fields >> client.on_gpu)) client.on_gpu = 0;
      good = good && is_amount(client.on_gpu);
      if (good) {
        const bool lives = start_time_(client.pid) == client.start_time;
        ended_.erase(id);
        take_missing(id);  // it may have ended between two of its lines
        if (lives) {
          put_missing(id, client);
        } else {
          ended_[id] = client;
        }
      }
      next_ = std::max(next_, id + 1);
    } else {
      good = false;
    }
    if (!good) problem_ = "line " + std::to_string(number) + " of " + file_ + " is not understood, and left out";
  }
}

void KnownClients::write() {
  dirty_.clear();
  if (file_.empty()) return;
  appended_ = 0;
  std::string content = "next " + std::to_string(next_) + "\n";
  for (const auto* clients : {&present_, &missing_, &ended_, &departed_}) {
    for (const auto& [id, client] : *clients) content += line_of(id, client);
  }
  Result<void> written = write_persisted_file(file_, content);
  problem_ = written ? "" : written.error().text;
  end_.reset(written ? open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW) : -1);
}

}  // namespace nvshare::scheduler
