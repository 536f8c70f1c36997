#include "cli/gpu_choice.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

GpuReport gpu(const char* uuid, int64_t total, int64_t foreign = 0) {
  GpuReport report;
  report.uuid = uuid;
  report.name = "Test GPU";
  report.total = total;
  report.foreign = foreign;
  return report;
}

ClientReport client(const char* gpu_uuid, const char* state, int64_t allocated) {
  ClientReport report;
  report.gpu = gpu_uuid;
  report.state = state;
  report.allocated = allocated;
  return report;
}

TEST(GpuChoice, ASingleGpuLeavesTheEnvironmentAlone) {
  StatusReport status;
  EXPECT_EQ(choose_emptiest(status).visible_devices, "");
  status.gpus = {gpu("GPU-a", 1 << 30)};
  const GpuChoice choice = choose_emptiest(status);
  EXPECT_EQ(choice.visible_devices, "");
  EXPECT_EQ(choice.description, "GPU 0 (Test GPU, 1 GiB)");
}

TEST(GpuChoice, TheGpuWithMostFreeMemory) {
  StatusReport status;
  status.gpus = {gpu("GPU-a", 1 << 30, 900 << 20), gpu("GPU-b", 1 << 30), gpu("GPU-c", 1 << 30)};
  status.clients = {client("GPU-b", "idle", 100 << 20)};
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-c");
}

TEST(GpuChoice, ABusyGpuCountsAsFullerThanAnIdleOne) {
  StatusReport status;
  status.gpus = {gpu("GPU-a", 4ll << 30), gpu("GPU-b", 1ll << 30)};
  status.clients = {client("GPU-a", "running", 1 << 20), client("GPU-b", "idle", 512 << 20)};
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-b");
}

// A loop in a shell that started three put all of them on the first: programs use the GPU seconds after their start.
TEST(GpuChoice, RunsThatHaveJustBegunAreSpread) {
  StatusReport status;
  status.gpus = {gpu("GPU-a", 1 << 30), gpu("GPU-b", 1 << 30, 3 << 20), gpu("GPU-c", 1 << 30)};
  const auto begins = [&status] {
    TenantReport run;
    run.kind = "run";
    run.root = 4711;
    status.tenants.push_back(run);
  };
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-a");
  begins();
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-b") << "3 MiB of a display make no difference";
  begins();
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-c");
  begins();
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-a");
  status.clients = {client("GPU-a", "running", 1 << 20)};
  status.tenants[0].clients_ever = 1;
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-b") << "two are to come";
  status.tenants[1].root = 0;
  EXPECT_EQ(choose_emptiest(status).visible_devices, "GPU-c") << "one has ended";
}

TEST(GpuChoice, ByIndexUuidOrAll) {
  StatusReport status;
  status.gpus = {gpu("GPU-aaaa", 1 << 30), gpu("GPU-abbb", 1 << 30)};
  EXPECT_EQ(choose_named(status, "1")->visible_devices, "GPU-abbb");
  EXPECT_EQ(choose_named(status, "GPU-aa")->visible_devices, "GPU-aaaa");
  EXPECT_EQ(choose_named(status, "all")->visible_devices, "");
  for (const char* wrong : {"2", "-1", "GPU-x", "GPU-", "", "one"}) {
    auto choice = choose_named(status, wrong);
    ASSERT_FALSE(choice) << wrong;
    EXPECT_NE(std::string(choice.error().text).find("GPU-abbb"), std::string::npos) << choice.error().text;
  }
}

TEST(GpuChoice, SeveralByName) {
  StatusReport status;
  status.gpus = {gpu("GPU-aaaa", 1 << 30), gpu("GPU-abbb", 1 << 30), gpu("GPU-cccc", 1 << 30)};
  EXPECT_EQ(choose_named(status, "2,0")->visible_devices, "GPU-cccc,GPU-aaaa");
  EXPECT_EQ(choose_named(status, "GPU-c, 1")->visible_devices, "GPU-cccc,GPU-abbb");
  EXPECT_EQ(choose_named(status, "0,1")->description, "GPU 0 (Test GPU, 1 GiB), GPU 1 (Test GPU, 1 GiB)");
  EXPECT_EQ(choose_named(status, "MIG-12ab-34")->visible_devices, "MIG-12ab-34");
  EXPECT_EQ(choose_named(status, "MIG-12ab-34")->description, "MIG device MIG-12ab-34");
  EXPECT_EQ(std::string(choose_named(status, "all,0").error().text)
                .find("'all' is all GPUs, with no other in 'all,0'; accepted: all, or some of 0 ("),
            0u);
  EXPECT_EQ(std::string(choose_named(status, "7").error().text).find("there is no GPU '7'; accepted: all, or some of 0 ("), 0u);
  for (const char* wrong : {"0,", "0,0", "0,GPU-aaaa", "0,7", "all,0", "0,MIG-12ab-34"}) EXPECT_FALSE(choose_named(status, wrong)) << wrong;
}

TEST(GpuChoice, WhileNoneIsKnownWhatCudaTakes) {
  for (const char* right : {"1", "0,1", "GPU-aaaa", "GPU-aaaa, 1", "MIG-12ab-34"}) {
    const auto choice = choose_named({}, right);
    ASSERT_TRUE(choice) << right << ": " << choice.error().text;
    EXPECT_EQ(choice->visible_devices, right);
  }
  for (const char* wrong : {"zero", ",", "0,", "-1", "all,0", "gpu0"}) {
    const auto choice = choose_named({}, wrong);
    ASSERT_FALSE(choice) << wrong;
    EXPECT_NE(std::string(choice.error().text).find("indices and UUIDs"), std::string::npos) << choice.error().text;
  }
}

TEST(GpuChoice, WhatTheUsersOwnVariableShows) {
  StatusReport status;
  status.gpus = {gpu("GPU-aaaa", 1 << 30), gpu("GPU-abbb", 1 << 30)};
  const std::string first = "GPU 0 (Test GPU, 1 GiB)";
  const std::string second = "GPU 1 (Test GPU, 1 GiB)";
  EXPECT_EQ(describe_visible(status, "1"), second + " (CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(describe_visible(status, "1,0"), second + ", " + first + " (CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(describe_visible(status, "GPU-ab"), second + " (CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(describe_visible(status, "0,-1,1"), first + " (CUDA_VISIBLE_DEVICES ends at '-1')");
  EXPECT_EQ(describe_visible(status, "-1"), "no GPU: CUDA_VISIBLE_DEVICES begins with '-1', which CUDA does not know");
  EXPECT_EQ(describe_visible(status, "GPU-a"), "no GPU: CUDA_VISIBLE_DEVICES begins with 'GPU-a', which CUDA does not know");
  EXPECT_EQ(describe_visible(status, "0,0"), "no GPU: CUDA_VISIBLE_DEVICES names '0' twice, which CUDA refuses");
  EXPECT_EQ(describe_visible(status, ""), "no GPU: CUDA_VISIBLE_DEVICES is empty");
  EXPECT_EQ(describe_visible(status, "MIG-12ab"), "MIG device MIG-12ab (CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(describe_visible({}, "1"), "GPU 1 (CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(describe_visible({}, "-1"), "no GPU: CUDA_VISIBLE_DEVICES begins with '-1', which CUDA does not know");
}

}  // namespace
}  // namespace nvshare::cli
