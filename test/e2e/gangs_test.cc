// Tenants on two GPUs whose memory does not fit together: switched on both at once, so that a collective never waits for a neighbour's
// turn.
#include <gtest/gtest.h>
#include <signal.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

StageOptions two_gpus() {
  StageOptions options;
  options.switch_time = "0.2";
  options.gpu = {{"SIMGPU_COUNT", "2"}};
  return options;
}

// One party of a meeting on that GPU, or on several.
Arguments party(const Stage& stage, const std::string& meeting, const std::string& gpus, int parties, bool leads) {
  return {
      "meet",    "--gpus",          gpus,     "--meeting", stage.directory() + "/meeting-" + meeting, "--parties", std::to_string(parties),
      "--leads", leads ? "1" : "0", "--hold", "110M"};
}

// The same, with pauses in which it gives the GPU up while its gang goes on, and more memory after each.
Arguments growing_party(const Stage& stage, const std::string& meeting, const std::string& gpus, bool leads) {
  Arguments arguments = party(stage, meeting, gpus, 2, leads);
  arguments.insert(arguments.end(), {"--pauses", "4", "--grow", "2M"});
  return arguments;
}

uint64_t switches_of(Stage& stage, size_t gpu) {
  auto report = stage.status();
  return report && report->gpus.size() > gpu ? report->gpus[gpu].switches : 0;
}

void expect_switches(Stage& stage, uint64_t wanted) {
  uint64_t seen[2] = {};
  EXPECT_TRUE(stage.wait_until([&] {
    for (size_t gpu : {0, 1}) seen[gpu] = std::max(seen[gpu], switches_of(stage, gpu));
    return (seen[0] >= wanted && seen[1] >= wanted) || stage.anybody_ended();
  })) << seen[0]
      << " and " << seen[1] << " switches";
  EXPECT_GE(seen[0], wanted);
  EXPECT_GE(seen[1], wanted);
}

size_t members_together(Stage& stage) {
  auto report = stage.status();
  if (!report) return 0;
  return static_cast<size_t>(
      std::count_if(report->clients.begin(), report->clients.end(), [](const auto& client) { return client.gang_gpus == 2; }));
}

TEST(Gangs, TwoTenantsOfTwoProcessesAndAJobOnOneGpuBeside) {
  Stage stage(two_gpus());
  stage.start_scheduler();
  for (const char* tenant : {"a", "b"}) {
    stage.start_tenant(tenant, {growing_party(stage, tenant, "0", true), growing_party(stage, tenant, "1", false)});
  }
  stage.start("single", party(stage, "single", "1", 1, true));
  EXPECT_TRUE(stage.wait_until([&] { return members_together(stage) == 4 || stage.anybody_ended(); }));
  expect_switches(stage, static_cast<uint64_t>(scaled(8, 3)));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// Threads of one process, on a GPU each.
TEST(Gangs, TwoProcessesOnTwoGpusEach) {
  Stage stage(two_gpus());
  stage.start_scheduler();
  for (const char* name : {"a", "b"}) stage.start(name, party(stage, name, "0,1", 2, true));
  expect_switches(stage, static_cast<uint64_t>(scaled(4, 2)));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(Gangs, AMemberKilledInMidTurn) {
  Stage stage(two_gpus());
  stage.start_scheduler();
  Child& victim = stage.start_tenant("victim", {party(stage, "victim", "0", 2, true), party(stage, "victim", "1", 2, false)});
  Child& other = stage.start_tenant("other", {party(stage, "other", "0", 2, true), party(stage, "other", "1", 2, false)});
  expect_switches(stage, 2);
  // One of its two processes, with the lock on its GPU. The other then waits in a collective for ever.
  pid_t killed = 0;
  ASSERT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    if (!report) return false;
    uint64_t tenant = 0;
    for (const auto& known : report->tenants) tenant = known.name == "victim" ? known.id : tenant;
    for (const auto& client : report->clients) {
      if (client.tenant == tenant && client.state == "running" && client.gpu == report->gpus[0].uuid) killed = client.pid;
    }
    return killed != 0;
  }));
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  EXPECT_TRUE(stage.wait_until([&] {
    auto report = stage.status();
    return report && std::none_of(report->clients.begin(), report->clients.end(), [&](const auto& client) { return client.pid == killed; });
  }));
  stage.forget(victim);  // as its launcher would end it
  stage.tell_to_stop();
  stage.expect_success(other);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
