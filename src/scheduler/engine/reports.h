// Reports of how things stand: for `status`, metrics and the page; for a process about its own tenants; for a client that waits. On the
// loop's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "protocol/admin.h"
#include "scheduler/engine/engine_parts.h"

namespace nvshare::scheduler {

// What was found of tenants, GPU by GPU, for their lines in a report.
class FoundOfTenants {
 public:
  using UsageReports = std::vector<std::pair<policy::TenantId, protocol::admin::UsageReport>>;

  void make_room_for(size_t tenants, size_t rows);
  void add(policy::TenantId tenant, protocol::admin::ComputeReport compute);
  void add(UsageReports of_gpu);
  void add(std::span<const MemoryLedger::View> some);
  // The tenant's on its way from memory; into its line, once.
  void fetch(policy::TenantId tenant) const;
  void put_into(protocol::admin::TenantReport& tenant, const Gpus& gpus);

 private:
  enum class Kind : uint8_t { kCompute, kUsage, kMemory };
  struct Row {
    Kind kind;
    uint32_t list, at;  // where it lies; `list`: in usage_
    uint32_t next = 0;  // of the tenant's, in rows_; 0: it is the last
  };
  struct Chain {
    uint32_t first, last;
  };

  void add(policy::TenantId tenant, Row row);
  const Row* first_of(policy::TenantId tenant) const;  // null: there is none
  const Row* behind(const Row& row) const { return row.next == 0 ? nullptr : &rows_[row.next]; }

  std::unordered_map<policy::TenantId, Chain> of_tenants_;
  std::vector<Row> rows_{Row{}};  // the first is nobody's
  std::vector<protocol::admin::ComputeReport> compute_;
  std::vector<UsageReports> usage_;
  std::vector<MemoryLedger::View> memory_;
};

// All that there is. With thousands of clients it is made in parts, so that clients are served in between. Each part is as things stand at
// its time.
class ReportInParts {
 public:
  // The engine outlives it, and may change between the parts.
  ReportInParts(const EngineParts& engine, policy::Instant now);

  using Clients = std::vector<protocol::admin::ClientReport>;
  using Tenants = std::vector<protocol::admin::TenantReport>;

  bool go_on(policy::Instant now);  // true: the report is complete
  // Those that are there stay as they are, and where they are until `outgrown` has them: more came than there was room for.
  const Clients& clients() const { return report_.clients; }
  Clients take_outgrown() { return std::exchange(outgrown_, {}); }
  // The same; they come once all clients are there.
  const Tenants& tenants() const { return report_.tenants; }
  Tenants take_outgrown_tenants() { return std::exchange(outgrown_tenants_, {}); }
  // Where an error ended it: all that others may still read.
  std::array<Clients, 2> take_clients() { return {std::move(report_.clients), take_outgrown()}; }
  std::array<Tenants, 2> take_tenants() { return {std::move(report_.tenants), take_outgrown_tenants()}; }
  // Its `changes` are those of its beginning.
  protocol::admin::StatusReport take() { return std::move(report_); }

 private:
  enum class Next { kClients, kNewcomers, kUse, kTenants, kRest };
  struct OfGpu {
    enum class Use { kOfGpu, kCompute, kOfTenants };
    size_t index;           // in report_.gpus
    policy::GpuView view;   // its tenants are looked at last
    Use use = Use::kOfGpu;  // what of it is next
    uint64_t left;          // Clients::left() by which its view has none that left
    size_t in_order = 0;    // of the view's clients, by their ids; newcomers are behind them
    size_t accounts = 0;    // of the view's tenants, so many are looked at
  };

  void add_clients(policy::Instant now);
  void add_newcomers(policy::Instant now);
  void add_reports(std::span<const policy::ClientView> clients, const std::string& gpu, policy::Instant now);
  void add_use(policy::Instant now);
  void forget_those_that_left(OfGpu& gpu) const;
  void add_limits_of_absent();
  void add_tenants();
  bool is_still_there(const OfGpu& gpu) const;  // else another GPU has its number by now

  const EngineParts engine_;
  protocol::admin::StatusReport report_;
  Clients outgrown_;  // that others may still read: copies of them are in the report
  Tenants outgrown_tenants_;
  std::vector<OfGpu> gpus_;
  Next next_ = Next::kClients;
  size_t at_ = 0;       // in gpus_
  uint64_t joined_;     // Clients::joined(): those up to then are in the report
  uint64_t newcomers_;  // the same: those up to then are to be
  std::string tenant_;  // the key of the last that is in the report
  bool any_tenant_ = false;
  FoundOfTenants of_tenants_;
  std::vector<MemoryLedger::View> limits_;  // of a part: found with its clients
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
