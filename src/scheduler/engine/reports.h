// Reports of how things stand: for `status`, metrics and the page; for a process about its own tenants; for a client that waits. On the
// loop's thread.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "protocol/admin.h"
#include "scheduler/engine/engine_parts.h"

namespace nvshare::scheduler {

// A report's tenants by their ids; the report outlives it, and has no more of them.
class ReportsOfTenants {
 public:
  ReportsOfTenants() = default;
  explicit ReportsOfTenants(std::vector<protocol::admin::TenantReport>& tenants);

  protocol::admin::TenantReport* find(policy::TenantId id) const;  // null: it is not in the report

 private:
  struct Place {
    policy::TenantId id;  // here, so that a search stays in one place of memory
    protocol::admin::TenantReport* report;
  };
  std::vector<Place> by_id_;  // in order
};

// All that there is. With thousands of clients it is made in parts, so that clients are served in between. Each part is as things stand at
// its time.
class ReportInParts {
 public:
  // The engine outlives it, and may change between the parts.
  ReportInParts(const EngineParts& engine, policy::Instant now);

  using Clients = std::vector<protocol::admin::ClientReport>;

  bool go_on(policy::Instant now);  // true: the report is complete
  // Those that are there stay as they are, and where they are until `outgrown` has them: more came than there was room for.
  const Clients& clients() const { return report_.clients; }
  Clients take_outgrown() { return std::exchange(outgrown_, {}); }
  // Where an error ended it: all that others may still read.
  std::array<Clients, 2> take_clients() { return {std::move(report_.clients), take_outgrown()}; }
  // Its `changes` are those of its beginning.
  protocol::admin::StatusReport take() { return std::move(report_); }

 private:
  enum class Next { kClients, kNewcomers, kTenants, kUse, kLimits, kRest };
  struct OfGpu {
    enum class Use { kOfGpu, kCompute, kOfTenants };
    size_t index;           // in report_.gpus
    policy::GpuView view;   // its tenants are looked at last
    Use use = Use::kOfGpu;  // what of it is next
    uint64_t left;          // Clients::left() by which its view has none that left
  };

  void add_clients(policy::Instant now);
  void add_newcomers(policy::Instant now);
  void add_reports(std::span<const policy::ClientView> clients, const std::string& gpu, policy::Instant now);
  void add_tenants();
  void add_use(policy::Instant now);
  void forget_those_that_left(OfGpu& gpu) const;
  void add_some_limits();
  bool is_still_there(const OfGpu& gpu) const;  // else another GPU has its number by now

  const EngineParts engine_;
  void make_room();

  protocol::admin::StatusReport report_;
  Clients outgrown_;  // copies of clients that others may still read
  std::vector<OfGpu> gpus_;
  Next next_ = Next::kClients;
  size_t at_ = 0;       // in gpus_
  uint64_t joined_;     // Clients::joined(): those up to then are in the report
  uint64_t newcomers_;  // the same: those up to then are to be
  std::string tenant_;  // the key of the last that is in the report
  bool any_tenant_ = false;
  ReportsOfTenants of_tenants_;             // in report_; once all are there
  std::vector<MemoryLedger::View> limits_;  // by GPU: found with the clients, for the tenants
  size_t limits_told_ = 0;                  // of them
};

// The same at once: for tests, and the simulation.
protocol::admin::StatusReport status_of(const EngineParts& engine, policy::Instant now);

// What a process is told of these tenants, which are its own. Nothing of other tenants is in it. `viewer`: the process.
protocol::admin::StatusReport own_report(const EngineParts& engine, pid_t viewer, const std::set<policy::TenantId>& own,
                                         policy::Instant now);

// The turn that a tenant waits for. `again_ms` is the caller's to fill in.
protocol::admin::TurnReport turn_report(const EngineParts& engine, policy::TenantId tenant, policy::Instant now);

// Why the client waits, for people; empty when it does not.
std::string waiting_sentence(const EngineParts& engine, const policy::ClientView& view, policy::Instant now);
std::string waiting_sentence(const EngineParts& engine, policy::ClientId client, policy::Instant now);

}  // namespace nvshare::scheduler
