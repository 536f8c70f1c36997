#include "cli/status_view.h"

#include <gtest/gtest.h>

#include <sstream>

namespace nvshare::cli {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

StatusReport example() {
  StatusReport status;
  status.version = "1.2.3";
  status.runtime_dir = "/run/nvshare";
  status.nvml = true;
  GpuReport gpu;
  gpu.uuid = "GPU-1";
  gpu.name = "Test GPU";
  gpu.total = 512ll << 20;
  gpu.nvml = true;
  gpu.foreign = 10ll << 20;
  gpu.switches = 13;
  status.gpus = {gpu};
  TenantReport tenant;
  tenant.id = 7;
  tenant.name = "train";
  tenant.kind = "run";
  tenant.gpu_memory_limit = 1ll << 30;
  status.tenants = {tenant};
  ClientReport running;
  running.pid = 4711;
  running.program = "python3";
  running.tenant = 7;
  running.gpu = "GPU-1";
  running.state = "running";
  running.resident = running.allocated = 384ll << 20;
  running.turns = 4;
  ClientReport waiting = running;
  waiting.pid = 4712;
  waiting.state = "waiting";
  waiting.resident = 0;
  waiting.swapped = 384ll << 20;
  waiting.unswappable = 24ll << 20;
  waiting.overhead = 300ll << 20;
  waiting.since_ns = 2'500'000'000;
  waiting.waiting_for = "memory: python3 (4711) has it";
  status.clients = {running, waiting};
  return status;
}

std::string line_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(part) != std::string::npos) return line;
  }
  return "";
}

TEST(StatusView, ALongNameLeavesRoomForTheRest) {
  StatusReport status = example();
  status.tenants[0].name = std::string(300, 'y');
  const std::string text = draw_status(status);
  EXPECT_NE(text.find(std::string(62, 'y') + ".."), std::string::npos) << text;
  EXPECT_EQ(text.find(std::string(63, 'y')), std::string::npos) << text;
}

TEST(StatusView, AGpuThatNoProgramHasUsedHasNoBoundYet) {
  StatusReport status = example();
  status.clients.clear();
  EXPECT_NE(line_with(draw_status(status), "Test GPU").find("0 B           -        0        13            -"), std::string::npos)
      << draw_status(status);
}

TEST(StatusView, AProgramPastNvshareIsOnAGpuOfThatNumber) {
  StatusReport status = example();
  protocol::admin::BypassReport bypass;
  bypass.pid = 42;
  bypass.program = "miner";
  bypass.tenant = "train";
  bypass.gpu = "GPU-1";
  status.bypasses = {bypass};
  EXPECT_NE(line_with(draw_status(status), "miner").find("uses GPU 0 (GPU-1) past nvshare"), std::string::npos) << draw_status(status);
}

TEST(StatusView, ShowsEveryClientWithItsMemoryAndWhatItWaitsFor) {
  const std::string text = draw_status(example());
  const std::string waiting = line_with(text, "4712");
  for (const char* part : {"train", "waiting", "2.5 s", "384 MiB", "24 MiB", "300 MiB", "memory: python3 (4711) has it"}) {
    EXPECT_NE(waiting.find(part), std::string::npos) << part << " in: " << waiting;
  }
  EXPECT_NE(line_with(text, "4711").find("running"), std::string::npos);
}

TEST(StatusView, AClientWhoseWorkNeverEndsIsShownSo) {
  StatusReport status = example();
  EXPECT_EQ(line_with(draw_status(status), "4711").find("does not drain"), std::string::npos);
  status.clients[0].drainable = false;
  EXPECT_NE(line_with(draw_status(status), "4711").find("running, does not drain"), std::string::npos);
}

TEST(StatusView, GpusSumUpTheirClients) {
  const std::string gpu = line_with(draw_status(example()), "Test GPU");
  for (const char* part : {"512 MiB", "384 MiB", "10 MiB", "13"}) EXPECT_NE(gpu.find(part), std::string::npos) << part << " in: " << gpu;
}

TEST(StatusView, ForeignMemoryIsUnknownWithoutNvml) {
  StatusReport status = example();
  status.nvml = false;
  status.gpus[0].nvml = false;
  const std::string text = draw_status(status);
  EXPECT_NE(text.find("without NVML"), std::string::npos);
  EXPECT_NE(line_with(text, "Test GPU").find("unknown"), std::string::npos);
}

TEST(StatusView, SaysWhoseHostMemoryIsShortAndWhy) {
  StatusReport status = example();
  status.host_memory_budget = 10ll << 30;
  status.host_memory_reserved = 9ll << 30;
  status.host_memory_used = 8ll << 30;
  status.host_memory_available = 2ll << 30;
  status.host_memory_bound = "the node's budget (host_memory_budget)";
  EXPECT_EQ(draw_status(status).find("could not have"), std::string::npos);
  status.clients[0].host_memory_missing = 3ll << 30;
  status.clients[0].host_memory_bound = "the memory limit of the scheduler's own cgroup";
  status.clients[1].host_memory_scheduler = 384ll << 20;
  const std::string text = draw_status(status);
  const std::string host = line_with(text, "Host memory");
  for (const char* part : {"10 GiB in all", "(by the node's budget (host_memory_budget))", "9 GiB lent", "8 GiB in use", "2 GiB more"}) {
    EXPECT_NE(host.find(part), std::string::npos) << part << " in: " << host;
  }
  const std::string missing = line_with(text, "could not have");
  for (const char* part : {"python3 (4711)", "3 GiB more", "the scheduler's own cgroup"}) {
    EXPECT_NE(missing.find(part), std::string::npos) << part << " in: " << missing;
  }
  EXPECT_NE(line_with(text, "4712").find("384 MiB (scheduler's)"), std::string::npos) << text;
}

TEST(StatusView, SaysWhichWayOfSharingWasMeasuredToBeBetter) {
  StatusReport status = example();
  EXPECT_EQ(line_with(draw_status(status), "as measured"), "");
  status.gpus[0].sharing = "turns";
  status.gpus[0].sharing_trials = 2;
  status.gpus[0].sharing_percent = 111;
  EXPECT_EQ(line_with(draw_status(status), "as measured"),
            "GPU 0: programs share it in turns, as measured: 111 % of the work that they get done together");
}

TEST(StatusView, FitsTheTerminalAndSaysWhatItHasNoRoomFor) {
  StatusReport status = example();
  status.tenants[0].name = std::string(300, 'y');
  status.gpus[0].sharing_percent = 111;
  status.gpus[0].compute_mode = "exact";
  status.tenants[0].compute.push_back({.gpu = "GPU-1"});
  status.clients[0].keeps_memory = "it called a function of a driver that is newer than nvshare: cuSomething";
  for (const size_t columns : {40, 60, 80, 100, 120}) {
    const std::string text = draw_status(status, columns);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line << " in:\n" << text;
    EXPECT_NE(text.find("4712"), std::string::npos) << text;
    EXPECT_NE(text.find("running"), std::string::npos) << text;
    EXPECT_NE(text.find("waits for memory:"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(columns) + " columns: "), std::string::npos) << text;
    EXPECT_NE(text.find("--wide"), std::string::npos) << text;
  }
  EXPECT_NE(line_with(draw_status(status, 80), "4712").find("384 MiB"), std::string::npos) << draw_status(status, 80);
  EXPECT_EQ(draw_status(status, 1000), draw_status(status)) << "all of it fits";
  EXPECT_EQ(draw_status(status).find("Not shown"), std::string::npos);
}

TEST(StatusView, AnEmptySchedulerIsSaidInWords) {
  const std::string text = draw_status(StatusReport{});
  EXPECT_NE(text.find("No GPU is known yet"), std::string::npos);
  EXPECT_NE(text.find("No clients."), std::string::npos);
}

}  // namespace
}  // namespace nvshare::cli
