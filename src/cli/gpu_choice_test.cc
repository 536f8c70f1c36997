#include "cli/gpu_choice.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;

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

}  // namespace
}  // namespace nvshare::cli
