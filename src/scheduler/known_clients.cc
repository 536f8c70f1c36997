#include "scheduler/known_clients.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "scheduler/kept_file.h"

namespace nvshare::scheduler {
namespace {

constexpr policy::ClientId kIdMax = policy::ClientId{1} << 53;  // 1, 2, 3, ...: no scheduler comes so far
constexpr int64_t kAmountMax = int64_t{1} << 53;                // bytes; a lease that is no bound is 2^50

bool is_amount(int64_t bytes) { return bytes >= 0 && bytes <= kAmountMax; }

}  // namespace

KnownClients::KnownClients(std::string file, StartTimeOf start_time) : file_(std::move(file)), start_time_(std::move(start_time)) {
  if (!file_.empty()) read();
}

policy::ClientId KnownClients::join(policy::ClientId claimed, const KnownClient& client) {
  policy::ClientId id = 0;
  auto known = missing_.find(claimed);
  if (known != missing_.end() && known->second.pid == client.pid && known->second.start_time == client.start_time &&
      known->second.gpu == client.gpu) {
    id = claimed;
    missing_.erase(known);
  } else {
    id = next_++;
  }
  present_[id] = client;
  write();
  return id;
}

void KnownClients::leave(policy::ClientId id) {
  if (present_.erase(id) > 0) write();
}

void KnownClients::forget(policy::ClientId id) {
  if (missing_.erase(id) > 0) write();
}

void KnownClients::keep_lease(policy::ClientId id, int64_t lease, int64_t charged) {
  const auto at = present_.find(id);
  if (at == present_.end()) return;
  KnownClient& client = at->second;
  const int64_t bound = (lease + kLeaseStep - 1) / kLeaseStep * kLeaseStep;
  dirty_ |= bound != client.lease || std::abs(charged - client.charged) >= kLeaseStep;
  const bool now = bound > client.lease;
  if (dirty_) {
    client.lease = bound;
    client.charged = charged;
  }
  if (now) write();
}

void KnownClients::keep_up() {
  if (dirty_) write();
}

// Lines "next ID" and "client ID PID START_TIME TENANT GPU LEASE OWN_LIMIT CHARGED".
void KnownClients::read() {
  Result<std::optional<std::string>> content = read_kept_file(file_);
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
    bool good = fields && id != 0 && id < kIdMax;
    if (good && kind == "next") {
      next_ = std::max(next_, id);
    } else if (good && kind == "client") {
      fields >> client.pid >> client.start_time >> client.tenant >> client.gpu >> client.lease >> client.own_limit >> client.charged;
      if (client.gpu == "-") client.gpu.clear();
      good = fields && client.start_time != 0 && is_amount(client.lease) && is_amount(client.own_limit) && is_amount(client.charged);
      if (good && start_time_(client.pid) == client.start_time) missing_[id] = client;
      next_ = std::max(next_, id + 1);
    } else {
      good = false;
    }
    if (!good) problem_ = "line " + std::to_string(number) + " of " + file_ + " is not understood, and left out";
  }
}

void KnownClients::write() {
  dirty_ = false;
  if (file_.empty()) return;
  std::ostringstream content;
  content << "next " << next_ << "\n";
  for (const auto* clients : {&present_, &missing_}) {
    for (const auto& [id, client] : *clients) {
      content << "client " << id << " " << client.pid << " " << client.start_time << " " << client.tenant << " "
              << (client.gpu.empty() ? "-" : client.gpu) << " " << client.lease << " " << client.own_limit << " " << client.charged << "\n";
    }
  }
  Result<void> written = write_kept_file(file_, content.str());
  problem_ = written ? "" : written.error().text;
}

}  // namespace nvshare::scheduler
