// What NVML says of each tenant's part of a GPU's time, beside what was billed. Pure; one UtilizationMonitor per GPU, not thread-safe.
//
// NVML's figure is an approximation: the driver samples how much of the time kernels of each process ran, every 1/6 s to 1 s, in whole
// percent, and shows it up to a second later. So nothing is billed by it. It says whether the driver gave the tenants what their turns were
// for. Over a few seconds both figures should agree but for
//   - gaps between the kernels of a turn, which are billed: NVML's is lower, for kernels of 5 us by some ten points;
//   - programs that run beside each other: each is billed an even part of the time, whatever it used;
//   - up to a second that NVML lags behind, where the load changes.
// NVML far above what was billed: work ran outside the tenant's turns. Far below: its turns went unused, or others ran in them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

// One look at who used a GPU's time.
struct UseSample {
  struct Process {
    int32_t pid = 0;
    uint32_t percent = 0;  // of `span`
  };
  int64_t span = 0;                // ns that it covers; they ended at most some seconds ago
  std::vector<Process> processes;  // others used nothing
  std::string unknown;             // why NVML cannot tell; the rest says nothing then
};

class UtilizationMonitor {
 public:
  static constexpr int64_t kInterval = 1'000'000'000;   // between two looks
  static constexpr int64_t kWindow = 10'000'000'000;    // over which shares are shown
  static constexpr double kBound = 15;                  // points that both figures may lie apart
  static constexpr int64_t kPatience = 30'000'000'000;  // for so long that is borne
  static constexpr double kOthersLeast = kBound;        // the same for programs that are no clients

  struct Shares {
    double nvml = 0;      // percent of the time
    double billed = 0;    // of the same time
    bool differ = false;  // they have lain apart by more than kBound for kPatience
  };
  struct Change {                            // for the log: Shares::differ has become true, or false again
    std::optional<policy::TenantId> tenant;  // none: programs that are no clients
    Shares shares;
  };

  // `tenant_of`: of the processes that are clients on this GPU. `billed`: to each tenant, since its account was opened. `now`:
  // CLOCK_MONOTONIC ns.
  std::vector<Change> update(const UseSample& sample, const std::map<int32_t, policy::TenantId>& tenant_of,
                             const std::map<policy::TenantId, int64_t>& billed, int64_t now);
  // Time is not shared by limits any more.
  void forget() { *this = UtilizationMonitor(); }

  int64_t span() const { return span_; }                   // ns that the shares are of; 0: nothing is known
  const std::string& unknown() const { return unknown_; }  // why
  // Nothing before a tenant is known here.
  std::optional<Shares> of_tenant(policy::TenantId tenant) const;
  Shares of_others() const;

 private:
  struct Part {
    double nvml = 0;  // percent x ns
    int64_t billed = 0;
  };
  struct Span {
    int64_t nvml = 0;
    int64_t billed = 0;
    std::map<policy::TenantId, Part> tenants;
    double others = 0;  // percent x ns
  };
  struct Apart {
    std::optional<int64_t> since;
    bool told = false;
  };

  Shares shares_of(double nvml, int64_t billed) const;
  void judge(std::optional<policy::TenantId> tenant, Shares shares, bool apart, int64_t now, std::vector<Change>* changes);

  std::deque<Span> spans_;
  int64_t span_ = 0;         // of all of them, as NVML counts
  int64_t billed_span_ = 0;  // and as the accounts do
  std::optional<int64_t> billed_at_;
  std::map<policy::TenantId, int64_t> billed_then_;
  std::map<int32_t, policy::TenantId> tenant_then_;  // a process may have ended since NVML saw it
  std::map<std::optional<policy::TenantId>, Apart> apart_;
  std::string unknown_;
};

}  // namespace nvshare::scheduler
