#include "scheduler/clients/usage_totals.h"

#include <gtest/gtest.h>

namespace nvshare::scheduler {
namespace {

using policy::ClientState;
using policy::ClientView;
using policy::GpuView;

ClientView client(policy::ClientId id, policy::TenantId tenant, ClientState state, uint64_t turns) {
  ClientView view{};
  view.client = id;
  view.tenant = tenant;
  view.state = state;
  view.in_turn = state != ClientState::kIdle && state != ClientState::kWaiting && state != ClientState::kPaused;
  view.turns = turns;
  view.drops = turns;
  view.time_running = static_cast<policy::Duration>(turns) * 100;
  view.swapped_out_total = static_cast<policy::Bytes>(turns) * 1000;
  return view;
}

policy::TenantView account(policy::TenantId tenant, policy::Duration used) {
  policy::TenantView view{};
  view.tenant = tenant;
  view.used = used;
  view.throttled_time = used / 10;
  return view;
}

GpuView gpu(std::vector<ClientView> clients, std::vector<policy::TenantView> accounts) {
  GpuView view{};
  view.gpu = 0;
  view.clients = std::move(clients);
  view.tenants = std::move(accounts);
  return view;
}

TEST(UsageTotals, AddUpThoseWhoLeftAndThoseWhoAreThere) {
  UsageTotals totals;
  EXPECT_FALSE(totals.of_tenant(1, gpu({}, {}), "GPU-1"));
  totals.joins(1, 0, {gpu({}, {})});
  totals.joins(1, 0, {gpu({client(1, 1, ClientState::kIdle, 0)}, {})});
  const GpuView both = gpu({client(1, 1, ClientState::kRunning, 5), client(2, 1, ClientState::kIdle, 3)}, {});
  auto usage = totals.of_tenant(1, both, "GPU-1");
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->gpu, "GPU-1");
  EXPECT_EQ(usage->grants, 8U);
  EXPECT_EQ(usage->turns, 7U) << "one turn is not over";
  totals.leaves(1, {both});
  const GpuView one = gpu({client(2, 1, ClientState::kIdle, 3)}, {});
  usage = totals.of_tenant(1, one, "GPU-1");
  EXPECT_EQ(usage->grants, 8U);
  EXPECT_EQ(usage->turns, 8U) << "a turn ends with its client";
  EXPECT_EQ(usage->drops, 8U);
  EXPECT_EQ(usage->running_ns, 800);
  EXPECT_EQ(usage->swapped_out, 8000);
  // The tenant is forgotten, its GPU's counts stay.
  totals.leaves(2, {one});
  totals.keep_only([](policy::TenantId) { return false; }, {gpu({}, {})});
  EXPECT_FALSE(totals.of_tenant(1, gpu({}, {}), "GPU-1"));
  EXPECT_EQ(totals.of_gpu(gpu({}, {}), "GPU-1").turns, 8U);
  EXPECT_EQ(totals.of_gpu(gpu({}, {}), "GPU-1").running_ns, 800);
}

// A pause ends its turn. When the lock is taken back in it, no turn begins or ends; what is counted never goes back.
TEST(UsageTotals, APauseThatEndsInADropIsNoTurn) {
  UsageTotals totals;
  totals.joins(1, 0, {gpu({}, {})});
  const auto turns = [&](ClientState state, bool in_turn) {
    ClientView view = client(1, 1, state, 5);
    view.in_turn = in_turn;
    return totals.of_tenant(1, gpu({view}, {}), "GPU-1")->turns;
  };
  EXPECT_EQ(turns(ClientState::kRunning, true), 4U);
  EXPECT_EQ(turns(ClientState::kPaused, false), 5U);
  EXPECT_EQ(turns(ClientState::kDropping, false), 5U);
  EXPECT_EQ(turns(ClientState::kIdle, false), 5U);
}

TEST(UsageTotals, AComputeAccountThatIsClosedStaysCounted) {
  UsageTotals totals;
  totals.joins(1, 0, {gpu({}, {})});
  const GpuView used = gpu({client(1, 1, ClientState::kIdle, 0)}, {account(1, 500)});
  EXPECT_EQ(totals.of_tenant(1, used, "GPU-1")->billed_ns, 500);
  totals.leaves(1, {used});
  EXPECT_EQ(totals.of_tenant(1, gpu({}, {account(1, 500)}), "GPU-1")->billed_ns, 500) << "not closed yet";
  EXPECT_EQ(totals.of_tenant(1, gpu({}, {}), "GPU-1")->billed_ns, 500) << "closed";
  EXPECT_EQ(totals.of_gpu(gpu({}, {}), "GPU-1").throttled_ns, 50);
  // Its next client opens another one.
  totals.joins(1, 0, {gpu({}, {})});
  const GpuView again = gpu({client(2, 1, ClientState::kIdle, 0)}, {account(1, 20)});
  EXPECT_EQ(totals.of_tenant(1, again, "GPU-1")->billed_ns, 520);
  EXPECT_EQ(totals.of_gpu(again, "GPU-1").billed_ns, 520);
  totals.leaves(2, {again});
  totals.keep_only([](policy::TenantId) { return false; }, {again});
  EXPECT_EQ(totals.of_gpu(again, "GPU-1").billed_ns, 520) << "the account is still open";
  totals.keep_only([](policy::TenantId) { return false; }, {gpu({}, {})});
  EXPECT_EQ(totals.of_gpu(gpu({}, {}), "GPU-1").billed_ns, 520);
}

// A client that held the lock of an earlier scheduler has turns that this one did not grant.
TEST(UsageTotals, ATurnOfAnEarlierSchedulerIsNotCounted) {
  UsageTotals totals;
  totals.joins(1, 0, {gpu({}, {})});
  EXPECT_EQ(totals.of_tenant(1, gpu({client(1, 1, ClientState::kRunning, 0)}, {}), "GPU-1")->turns, 0U);
}

}  // namespace
}  // namespace nvshare::scheduler
