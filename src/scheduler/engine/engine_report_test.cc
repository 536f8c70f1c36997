// Reports that are made in parts, while clients go on.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <set>
#include <span>
#include <utility>

#include "scheduler/engine/reports.h"
#include "scheduler/testing/failing_memory.h"
#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

constexpr ConnectionId kClients = 250;  // of more than two parts

std::set<uint64_t> tenants_of(const protocol::admin::StatusReport& report) {
  std::set<uint64_t> tenants;
  for (const auto& tenant : report.tenants) tenants.insert(tenant.id);
  return tenants;
}

TEST_F(EngineTest, AReportInPartsIsTheSameAsOneAtOnceWhenNothingHappens) {
  settings_.policy.overhead_default = kMiB;  // all of them fit
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  send(7, protocol::ReqLock{1});
  ReportInParts parts(engine().parts(), now_);
  int count = 1;
  while (!parts.go_on(now_)) ++count;
  EXPECT_GT(count, 4) << "others are served in between";
  const protocol::admin::StatusReport report = parts.take();
  EXPECT_EQ(protocol::admin::encode(report), protocol::admin::encode(status_of(engine().parts(), now_)));
  ASSERT_EQ(report.clients.size(), kClients);
  EXPECT_EQ(report.gpus.at(0).usage.grants, 1u);
  ASSERT_EQ(report.tenants.size(), kClients);
  for (const auto& tenant : report.tenants) EXPECT_EQ(tenant.usage.size(), 1u);
}

TEST_F(EngineTest, SharesOfMoreTenantsThanAPartHasAreAllInAReport) {
  settings_.policy.overhead_default = kMiB;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  protocol::admin::SetRequest limit;
  limit.tenant = std::to_string(client(0).tenant);
  limit.gpu_core_limit = 40;
  ASSERT_TRUE(engine().set(limit, now_));
  const protocol::admin::StatusReport report = status_of(engine().parts(), now_);
  ASSERT_EQ(report.tenants.size(), kClients);
  for (const auto& tenant : report.tenants) {
    ASSERT_EQ(tenant.compute.size(), 1u) << tenant.name;
    EXPECT_EQ(tenant.compute[0].gpu, report.gpus.at(0).uuid);
  }
}

// A tenant's memory on a GPU comes with the first of its clients there, which may leave before the next one's part is made.
TEST_F(EngineTest, ATenantsMemoryOnAGpuIsInAReportOnce) {
  settings_.policy.overhead_default = kMiB;
  const pid_t first = getpid(), last = getppid();  // of one tenant
  look_at_cgroups_ = [=](pid_t pid) -> std::string { return pid == first || pid == last ? "0::/system.slice/shared.service\n" : "0::/\n"; };
  come(1, first);
  for (ConnectionId id = 2; id < kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), id * kMiB, 0);
  come(kClients, last);
  for (const bool leaves : {false, true}) {
    ReportInParts parts(engine().parts(), now_);
    ASSERT_FALSE(parts.go_on(now_));
    if (leaves) engine().disconnected(1, "it left", ++now_);
    while (!parts.go_on(now_)) {
    }
    const protocol::admin::StatusReport report = parts.take();
    ASSERT_EQ(report.clients.size(), kClients);
    ASSERT_EQ(report.tenants.size(), kClients - 1);
    for (const auto& tenant : report.tenants) {
      ASSERT_EQ(tenant.memory.size(), 1u) << tenant.name << (leaves ? ", whose first client left" : "");
      EXPECT_EQ(tenant.memory[0].gpu, report.gpus.at(0).uuid);
      int64_t charged = 0;
      for (const auto& client : report.clients) charged += client.tenant == tenant.id ? client.charged : 0;
      EXPECT_EQ(tenant.memory[0].charged, charged) << tenant.name;
    }
  }
}

// What is looked up for many clients together, and for each by itself.
TEST_F(EngineTest, AProcessIsToldOfItsClientsWhatTheAdministratorIs) {
  settings_.policy.overhead_default = kMiB;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), static_cast<int64_t>(id) * kMiB, 0);
  for (const ConnectionId id : {ConnectionId{7}, ConnectionId{60}}) send(id, protocol::ReqLock{1});
  now_ += 1'000'000;
  protocol::admin::StatusReport all = status_of(engine().parts(), now_), own;
  ASSERT_EQ(all.clients.size(), kClients);
  for (const auto& client : all.clients) {
    protocol::admin::StatusReport told = own_report(engine().parts(), getpid(), {client.tenant}, now_);
    ASSERT_EQ(told.clients.size(), 1u);
    told.clients[0].pid = client.pid;
    told.clients[0].waiting_for = client.waiting_for;
    own.clients.push_back(told.clients[0]);
  }
  protocol::admin::StatusReport clients;
  clients.clients = all.clients;
  EXPECT_EQ(protocol::admin::encode(clients), protocol::admin::encode(own));
}

TEST_F(EngineTest, WhoWaitsForATurnIsToldWhoHasTheGpu) {
  for (const ConnectionId id : {ConnectionId{1}, ConnectionId{2}}) {
    join(id, static_cast<pid_t>(100'000 + id), 12 * kGiB, 0);
    send(id, protocol::ReqLock{1});
  }
  const protocol::admin::StatusReport status = status_of(engine().parts(), now_);
  ASSERT_EQ(status.clients.size(), 2u);
  const auto& holder = status.clients[0];
  const auto name = std::ranges::find(status.tenants, holder.tenant, &protocol::admin::TenantReport::id)->name;
  now_ += 3'000'000'000;
  EXPECT_FALSE(turn_report(engine().parts(), holder.tenant, now_).waits);
  EXPECT_FALSE(turn_report(engine().parts(), 987'654, now_).waits) << "there is no such tenant";
  const auto turn = turn_report(engine().parts(), status.clients[1].tenant, now_);
  EXPECT_TRUE(turn.waits);
  EXPECT_EQ(turn.waited_ns, 3'000'000'000);
  EXPECT_EQ(turn.gpu, 0u);
  EXPECT_EQ(turn.holder, name);
  EXPECT_EQ(turn.state, holder.state);
  EXPECT_EQ(turn.others, 0u);
}

TEST_F(EngineTest, ClientsThatComeAndGoWhileAReportIsMadeAreInItOnceOrNot) {
  settings_.policy.overhead_default = kMiB;  // all of them fit
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  ConnectionId next = kClients + 1;
  ReportInParts parts(engine().parts(), now_);
  const uint64_t begun = engine().parts().steps.changes();
  while (!parts.go_on(now_)) {
    engine().disconnected(next - kClients, "it left", ++now_);
    join(next, static_cast<pid_t>(100'000 + next), kMiB, 0);
    ++next;
  }
  const protocol::admin::StatusReport report = parts.take();
  EXPECT_EQ(report.changes, begun) << "whoever has it is to look again";
  EXPECT_GT(engine().parts().steps.changes(), begun);
  std::set<uint64_t> ids;
  for (const auto& client : report.clients) EXPECT_TRUE(ids.insert(client.id).second) << "twice";
  EXPECT_GE(ids.size(), kClients - 10);
  EXPECT_LE(ids.size(), kClients + 10);
  EXPECT_GE(tenants_of(report).size(), kClients - 10);
}

// After a restart it has its former id, which may be among those whose part is made already.
TEST_F(EngineTest, AClientThatComesBackWhileAReportIsMadeIsInItOnce) {
  settings_.policy.overhead_default = kMiB;
  alive_.emplace();
  for (ConnectionId id = 1; id <= kClients; ++id) {
    alive_->insert(static_cast<pid_t>(100'000 + id));
    join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  }
  std::vector<uint64_t> ids;
  for (const auto& client : status_of(engine().parts(), now_).clients) ids.push_back(client.id);
  ASSERT_EQ(ids.size(), kClients);
  engine_.reset();
  packets_ = {};
  const auto comes_back = [&](ConnectionId id) { join(id, static_cast<pid_t>(100'000 + id), kMiB, 0, ids[id - 1]); };
  for (ConnectionId id = 3; id < kClients; ++id) comes_back(id);
  ReportInParts parts(engine().parts(), now_);
  ASSERT_FALSE(parts.go_on(now_));
  comes_back(1);         // behind the part that is made
  comes_back(kClients);  // in one that comes
  bool is_second_back = false;
  while (!parts.go_on(now_)) {
    if (parts.clients().size() < kClients - 2 || std::exchange(is_second_back, true)) continue;
    comes_back(2);  // when all parts of its GPU's are made
  }
  ASSERT_TRUE(is_second_back);
  std::multiset<uint64_t> in_report;
  const protocol::admin::StatusReport report = parts.take();
  for (const auto& client : report.clients) in_report.insert(client.id);
  EXPECT_EQ(in_report, std::multiset<uint64_t>(ids.begin(), ids.end()));
  for (const auto& tenant : report.tenants) {
    EXPECT_EQ(tenant.memory.size(), 1u) << tenant.name;
    EXPECT_EQ(tenant.usage.size(), 1u) << tenant.name;
  }
}

// Of a tenant on two GPUs the first client there leaves while the report is made, and the next one is not back since the scheduler was
// restarted: what comes with the absent is behind what was found on the other GPU.
TEST_F(EngineTest, ATenantsMemoryIsInAReportOnceWhereItsNextClientIsAbsent) {
  const pid_t back = getpid(), absent = getppid();  // of one tenant
  look_at_cgroups_ = [](pid_t) -> std::string { return "0::/system.slice/shared.service\n"; };
  has_nvml_ = false;
  const auto join_on = [&](ConnectionId connection, pid_t pid, uint8_t gpu, uint64_t id) {
    Peer peer;
    peer.pid = pid;
    peer.start_time = start_time_of(pid);
    engine().connected(connection, std::move(peer));
    auto message = test_registration(kMiB);
    message.gpu_uuid[0] = gpu;
    message.client_id = id;
    send(connection, message);
    return packets_.last<protocol::Registered>(connection).value_or(protocol::Registered{}).client_id;
  };
  const uint64_t first = join_on(1, back, 1, 0), next = join_on(2, absent, 1, 0), on_other = join_on(3, back, 2, 0);
  ASSERT_LT(first, next);
  engine_.reset();
  ASSERT_EQ(join_on(11, back, 1, first), first);
  ASSERT_EQ(join_on(13, back, 2, on_other), on_other);
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  ASSERT_TRUE(engine().parts().ledger.knows(next)) << "the absent one's memory counts";
  ReportInParts parts(engine().parts(), now_);
  while (parts.clients().size() < 2) ASSERT_FALSE(parts.go_on(now_));
  engine().disconnected(11, "it left", ++now_);
  while (!parts.go_on(now_)) {
  }
  const protocol::admin::StatusReport report = parts.take();
  ASSERT_EQ(report.tenants.size(), 1u);
  std::multiset<std::string> gpus, shown;
  for (const auto& gpu : report.gpus) gpus.insert(gpu.uuid);
  for (const auto& memory : report.tenants[0].memory) shown.insert(memory.gpu);
  EXPECT_EQ(gpus.size(), 2u);
  EXPECT_EQ(shown, gpus);
}

// Another thread writes clients while more are added: what it reads is not moved under its hands.
TEST_F(EngineTest, ClientsOfAReportInTheMakingStayWhereTheyAre) {
  settings_.policy.overhead_default = kMiB;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  ReportInParts parts(engine().parts(), now_);
  const ReportInParts::Clients* clients = &parts.clients();
  const protocol::admin::ClientReport* first = clients->data();
  ConnectionId next = kClients + 1;
  std::vector<ReportInParts::Clients> outgrown;
  size_t seen = 0;
  while (!parts.go_on(now_)) {
    if (auto old = parts.take_outgrown(); !old.empty()) {
      ASSERT_EQ(old.data(), first);
      ASSERT_EQ(old.size(), seen);
      for (size_t i = 0; i < old.size(); ++i)
        ASSERT_EQ(old[i].program + std::to_string(old[i].id), (*clients)[i].program + std::to_string((*clients)[i].id));
      outgrown.push_back(std::move(old));
      first = clients->data();
    }
    ASSERT_EQ(clients->data(), first);
    seen = clients->size();
    for (int i = 0; i < 60 && next < 2 * kClients; ++i, ++next) join(next, static_cast<pid_t>(100'000 + next), kMiB, 0);
  }
  EXPECT_FALSE(outgrown.empty()) << "or the test has tried nothing";
  EXPECT_EQ(parts.take().clients.data(), first);
}

TEST_F(EngineTest, TenantsOfAReportInTheMakingAreWholeAndStayWhereTheyAre) {
  settings_.policy.overhead_default = kMiB;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  const std::set<uint64_t> before = tenants_of(status_of(engine().parts(), now_));
  ReportInParts parts(engine().parts(), now_);
  ConnectionId next = kClients + 1;
  std::vector<ReportInParts::Tenants> outgrown;
  std::vector<std::string> texts;  // of those that were there
  const auto text_of = [](const protocol::admin::TenantReport& tenant) {
    protocol::admin::StatusReport report;
    report.tenants.push_back(tenant);
    return protocol::admin::encode(report);
  };
  while (!parts.go_on(now_)) {
    const ReportInParts::Tenants& tenants = parts.tenants();
    ASSERT_TRUE(tenants.empty() || parts.clients().size() == kClients) << "all of them come before";
    if (auto old = parts.take_outgrown_tenants(); !old.empty()) {
      ASSERT_EQ(old.size(), texts.size());
      for (size_t i = 0; i < old.size(); ++i) ASSERT_EQ(text_of(old[i]), texts[i]);
      outgrown.push_back(std::move(old));
    }
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(text_of(tenants[i]), texts[i]);
    for (size_t i = texts.size(); i < tenants.size(); ++i) {
      ASSERT_EQ(tenants[i].memory.size(), before.count(tenants[i].id)) << i;
      ASSERT_EQ(tenants[i].usage.size(), before.count(tenants[i].id)) << i;
      texts.push_back(text_of(tenants[i]));
    }
    if (tenants.empty()) continue;
    for (int i = 0; i < 60 && next < 2 * kClients; ++i, ++next) {  // whose tenants are in it without what they do
      engine().disconnected(next - kClients, "it left", ++now_);
      join(next, static_cast<pid_t>(100'000 + next), kMiB, 0);
    }
  }
  EXPECT_FALSE(outgrown.empty()) << "or the test has tried nothing";
}

// The part that fails may have moved them just before: who reads those that were there can end it in peace.
TEST_F(EngineTest, ClientsOfAReportThatFailsStayWhereTheyAre) {
  settings_.policy.overhead_default = kMiB;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  ConnectionId next = kClients + 1;
  bool has_failed = true;
  int failed_after_growth = 0;
  for (int64_t passing = 0; has_failed; passing += 31) {
    std::array<ReportInParts::Clients, 2> kept;
    std::span<const protocol::admin::ClientReport> read;
    {
      ReportInParts parts(engine().parts(), now_);
      const ConnectionId first = next;
      for (; next < first + 120; ++next) join(next, static_cast<pid_t>(100'000 + next), kMiB, 0);
      while (parts.clients().size() <= kClients) ASSERT_FALSE(parts.go_on(now_));
      read = parts.clients();
      const FailingMemory memory(passing, 1);
      try {
        parts.go_on(now_);
      } catch (const std::bad_alloc&) {
      }
      has_failed = memory.has_failed();
      kept = parts.take_clients();
      for (ConnectionId id = first; id < next; ++id) engine().disconnected(id, "it left", ++now_);
    }
    ASSERT_TRUE(kept[0].data() == read.data() || kept[1].data() == read.data()) << passing;
    if (has_failed && !kept[1].empty()) ++failed_after_growth;
    for (const protocol::admin::ClientReport& client : read) ASSERT_FALSE(client.program.empty());
  }
  EXPECT_GT(failed_after_growth, 0) << "or the test has tried nothing";
}

// Clients' counts go into totals when they leave: they are in the report once, whether it had seen them before or not.
TEST_F(EngineTest, TurnsOfClientsThatLeaveWhileAReportIsMadeAreCountedOnce) {
  settings_.policy.overhead_default = kMiB;  // all of them fit
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  for (const ConnectionId id : {ConnectionId{1}, kClients}) send(id, protocol::ReqLock{1});
  ASSERT_EQ(status_of(engine().parts(), now_).gpus.at(0).usage.grants, 2u);
  ReportInParts parts(engine().parts(), now_);
  ASSERT_FALSE(parts.go_on(now_));
  for (const ConnectionId id : {ConnectionId{1}, kClients}) engine().disconnected(id, "it left", ++now_);
  while (!parts.go_on(now_)) {
  }
  const protocol::admin::StatusReport report = parts.take();
  EXPECT_EQ(report.gpus.at(0).usage.grants, 2u);
  uint64_t of_tenants = 0;
  for (const auto& tenant : report.tenants) {
    for (const auto& usage : tenant.usage) of_tenants += usage.grants;
  }
  EXPECT_LE(of_tenants, 2u);
}

}  // namespace
}  // namespace nvshare::scheduler
