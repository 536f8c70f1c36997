#include "cli/start_condition.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

StatusReport two_gpus() {
  StatusReport status;
  status.gpus.resize(2);
  status.gpus[0].uuid = "GPU-a";
  status.gpus[1].uuid = "GPU-b";
  return status;
}

void add_tenant(StatusReport& status, uint64_t id, const char* name, const char* kind, uint64_t clients, int32_t root = 0) {
  TenantReport& tenant = status.tenants.emplace_back();
  tenant.id = id;
  tenant.name = name;
  tenant.kind = kind;
  tenant.clients = clients;
  tenant.root = root;
}

void add_client(StatusReport& status, uint64_t tenant, const char* gpu, const char* state, int64_t seconds) {
  ClientReport& client = status.clients.emplace_back();
  client.tenant = tenant;
  client.gpu = gpu;
  client.state = state;
  client.since_ns = seconds * 1'000'000'000;
}

TEST(StartCondition, WithoutANamedGpuOneThatIsFreeIsEnough) {
  StatusReport status = two_gpus();
  const StartCondition any{true, {}, {}};
  EXPECT_EQ(missing_for(status, any), "");
  add_tenant(status, 7, "train", "run", 1, 100);
  add_client(status, 7, "GPU-a", "running", 125);
  EXPECT_EQ(missing_for(status, any), "") << "the other one is free";
  EXPECT_EQ(missing_for(status, {true, {"GPU-b"}, {}}), "");
  EXPECT_EQ(missing_for(status, {true, {"GPU-a"}, {}}), "a free GPU (GPU 0: 'train' has it, running for 2 min 05 s)");
  EXPECT_NE(missing_for(status, {true, {"GPU-b", "GPU-a"}, {}}), "") << "all that are named have to be free";
  add_client(status, 7, "GPU-b", "waiting", 1);
  add_client(status, 7, "GPU-b", "waiting", 1);
  EXPECT_EQ(missing_for(status, any), "a free GPU (GPU 0: 'train' has it, running for 2 min 05 s, GPU 1: 2 wait)");
  for (ClientReport& client : status.clients) client.state = "idle";
  EXPECT_EQ(missing_for(status, {true, {"GPU-a", "GPU-b"}, {}}), "") << "idle clients, or those of suspended tenants, use nothing";
}

TEST(StartCondition, ATenantHasEndedWhenItsProgramHas) {
  StatusReport status = two_gpus();
  add_tenant(status, 1, "train", "run", 0, 100);
  add_tenant(status, 2, "train", "unit", 0);
  add_tenant(status, 3, "nightly", "job", 0);
  add_tenant(status, 4, "serve", "pod", 2);
  add_tenant(status, 5, "gone", "run", 0, 0);
  status.tenants[2].job = 42;
  EXPECT_FALSE(has_ended(status, 1)) << "its program lives, though it uses no GPU now";
  EXPECT_TRUE(has_ended(status, 2));
  EXPECT_FALSE(has_ended(status, 3)) << "Slurm says when";
  EXPECT_FALSE(has_ended(status, 4));
  EXPECT_TRUE(has_ended(status, 5));
  EXPECT_TRUE(has_ended(status, 6)) << "the scheduler has forgotten it";
  EXPECT_EQ(missing_for(status, {false, {}, {2, 5, 4, 1}}), "the end of 'serve'");
  EXPECT_EQ(missing_for(status, {true, {}, {2, 5}}), "");
}

TEST(StartCondition, TenantsAreFoundByNameIdOrJob) {
  StatusReport status;
  add_tenant(status, 1, "train", "run", 0);
  add_tenant(status, 2, "train", "run", 0);
  add_tenant(status, 3, "nightly", "job", 0);
  status.tenants[2].job = 42;
  EXPECT_EQ(tenants_named(status, "train"), (std::vector<uint64_t>{1, 2})) << "all of that name";
  EXPECT_EQ(tenants_named(status, "2"), std::vector<uint64_t>{2});
  EXPECT_EQ(tenants_named(status, "job=42"), std::vector<uint64_t>{3});
  EXPECT_TRUE(tenants_named(status, "job=4").empty());
  EXPECT_TRUE(tenants_named(status, "trai").empty());
  add_tenant(status, 9, "2", "run", 1);
  add_tenant(status, 10, "job=42", "run", 1);
  add_tenant(status, 11, "job=43", "run", 1);
  EXPECT_EQ(tenants_named(status, "2"), std::vector<uint64_t>{2}) << "or nobody could name the second any more";
  EXPECT_EQ(tenants_named(status, "9"), std::vector<uint64_t>{9});
  EXPECT_EQ(tenants_named(status, "job=42"), std::vector<uint64_t>{3});
  EXPECT_TRUE(tenants_named(status, "job=43").empty()) << "there is no such job";
  add_tenant(status, 12, "d8269d69ea8bcd1e1e03", "container", 1);
  add_tenant(status, 13, "d8269d69ea8bffff", "run", 1);
  EXPECT_EQ(tenants_named(status, "d8269d69ea8b"), std::vector<uint64_t>{12}) << "as docker ps shows it";
  EXPECT_TRUE(tenants_named(status, "d8269d69ea8").empty());
  add_tenant(status, 14, "d8269d69ea8b", "run", 1);
  EXPECT_EQ(tenants_named(status, "d8269d69ea8b"), (std::vector<uint64_t>{12, 14})) << "a program chose that name: which is meant is asked";
}

}  // namespace
}  // namespace nvshare::cli
