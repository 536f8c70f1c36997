#include "cli/paused_tenant.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace nvshare::cli {
namespace {

using protocol::admin::StatusReport;

constexpr std::chrono::milliseconds kWorkPatience{5'000};  // for work that was submitted to end
constexpr std::chrono::milliseconds kBetweenLooks{10};

}  // namespace

bool works_under_mps(const StatusReport& status, uint64_t tenant) {
  return std::any_of(status.clients.begin(), status.clients.end(), [&](const auto& client) {
    return client.tenant == tenant && client.mps && client.state != "idle" && client.state != "waiting";
  });
}

PausedTenant::PausedTenant(AdminConnection& admin, uint64_t tenant) : admin_(admin), tenant_(tenant) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ends, signal);
  sigprocmask(SIG_BLOCK, &ends, &former_signals_);
}

PausedTenant::~PausedTenant() {
  if (paused_) {
    // A tenant whose last process has ended is gone.
    const auto status = admin_.status();
    const bool lives =
        status && std::any_of(status->tenants.begin(), status->tenants.end(), [&](const auto& one) { return one.id == tenant_; });
    if (const auto ok = set(false); !ok && (lives || !status)) {
      fmt::print(stderr, "nvsharectl: tenant {} stays paused: {}; 'nvsharectl resume {}' lets it go on\n", tenant_, ok.error().text,
                 tenant_);
    }
  }
  sigprocmask(SIG_SETMASK, &former_signals_, nullptr);
}

Result<void> PausedTenant::set(bool paused) {
  protocol::admin::SetRequest request;
  request.tenant = std::to_string(tenant_);
  request.paused = paused;
  const auto line = admin_.ask(request);
  if (!line) return line.error();
  return protocol::admin::decode_ok(*line);
}

Result<void> PausedTenant::stop(const StatusReport& status) {
  if (!works_under_mps(status, tenant_)) return {};
  const auto meant = std::find_if(status.tenants.begin(), status.tenants.end(), [&](const auto& one) { return one.id == tenant_; });
  if (meant == status.tenants.end() || !meant->paused) {
    if (auto ok = set(true); !ok) return ok;
    paused_ = true;
  }
  for (const auto until = std::chrono::steady_clock::now() + kWorkPatience; std::chrono::steady_clock::now() < until;) {
    const auto now = admin_.status();
    if (!now) return now.error();
    if (!works_under_mps(*now, tenant_)) return {};
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return error_format("its work on the GPU has not ended within %lld s", static_cast<long long>(kWorkPatience.count() / 1000));
}

}  // namespace nvshare::cli
