// Compute limits from end to end: two busy tenants of which each gets its percentage of the GPU's time, whatever else happens.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

using protocol::admin::ComputeReport;

constexpr int kWork_us = kSlowness == 1 ? 1000 : 5000;  // of a kernel: a program that a sanitizer slows down must keep the GPU busy too

struct Seen {
  ComputeReport compute;
  double work = 0;  // pieces of work that its program has done, as it says; of two programs: one's
  int64_t when_ns = 0;
};

class ComputeLimits : public ::testing::Test {
 protected:
  struct Ran {
    int status = -1;
    std::string output;
  };
  Ran control(const std::vector<std::string>& words) {
    std::vector<std::string> command = {kControlPath};
    command.insert(command.end(), words.begin(), words.end());
    Child& child = stage_.start_command("control-" + std::to_string(++controls_), command, false);
    const auto status = child.wait(moments());
    Ran ran{status.value_or(-1), child.log()};
    stage_.forget(child);
    return ran;
  }

  static double work_of(const Child& child) {
    const std::string log = child.log();
    const size_t at = log.rfind("units ", log.rfind('\n'));  // of a whole line
    return at == std::string::npos ? 0 : std::stod(log.substr(at + 6));
  }

  std::optional<Seen> look(const Child& child) {
    const auto report = stage_.status();
    if (!report) return std::nullopt;
    for (const auto& tenant : report->tenants) {
      if (tenant.name == child.name() && tenant.compute.size() == 1) return Seen{tenant.compute[0], work_of(child), now_ns()};
    }
    return std::nullopt;
  }

  // Percent of the time since a mark: what a tenant was billed, and what the work of its only program takes.
  struct Shares {
    double billed = 0, work = 0;
  };
  // Until the shares since now are right: on a busy machine a drop is answered late, and what that took is paid back later.
  std::vector<Shares> measure(const std::vector<Child*>& tenants, const std::function<bool(const std::vector<Shares>&)>& right) {
    std::vector<Seen> before;
    for (Child* tenant : tenants) before.push_back(look(*tenant).value_or(Seen{}));
    std::vector<Shares> shares(tenants.size());
    const bool held = stage_.wait_until([&] {
      double seconds = 0;
      for (size_t i = 0; i < tenants.size(); ++i) {
        const Seen after = look(*tenants[i]).value_or(before[i]);
        EXPECT_GE(after.compute.used_ns, before[i].compute.used_ns);
        seconds = static_cast<double>(after.when_ns - before[i].when_ns) / 1e9 + 1e-9;
        shares[i] = {static_cast<double>(after.compute.used_ns - before[i].compute.used_ns) / seconds / 1e7,
                     (after.work - before[i].work) * kWork_us / seconds / 1e4};
      }
      return seconds >= 1.2 && right(shares);
    });
    EXPECT_TRUE(held) << "the shares never became right";
    for (size_t i = 0; i < tenants.size(); ++i) std::cout << tenants[i]->name() << ": billed " << shares[i].billed << " %\n";
    std::cout << tenants[0]->name() << ": work " << shares[0].work << " %\n";
    return shares;
  }

  // The most that a tenant has used, as the scheduler's file for its successor says.
  static int64_t used_in(const std::string& file) {
    std::ifstream stream(file);
    int64_t most = 0;
    const std::string field = "\"used\":";
    for (std::string line; std::getline(stream, line);) {
      if (const size_t at = line.find(field); at != std::string::npos)
        most = std::max<int64_t>(most, std::stoll(line.substr(at + field.size())));
    }
    return most;
  }

  Stage stage_;
  int controls_ = 0;
};

TEST_F(ComputeLimits, HoldFromTheStartAndWhenTheyChange) {
  stage_.start_scheduler();
  const Arguments steady = {"steady", "--work", std::to_string(kWork_us)};
  Child& one = stage_.start_tenant("one", {steady}, 0, 20);
  Child& two = stage_.start_tenant("two", {steady, steady}, 0, 60);  // its two programs share its limit
  ASSERT_TRUE(stage_.wait_until([&] { return work_of(one) > 0 && work_of(two) > 0; }));

  // No more than the limit, and something: on a machine that is busy with other things a program may get less.
  const auto first = measure({&one, &two}, [](const std::vector<Shares>& shares) {
    return shares[0].billed < 25 && shares[0].billed > 3 && shares[0].work < 32 && shares[1].billed < 66 &&
           shares[1].billed > 1.3 * shares[0].billed;
  });
  const Seen before = look(one).value_or(Seen{});
  EXPECT_DOUBLE_EQ(before.compute.quota, 20);
  EXPECT_GT(before.compute.throttled_time_ns, 0);
  EXPECT_GT(before.compute.share, 0);
  EXPECT_GE(before.compute.debt_ns, 0);

  // Changed while they run. What was used stays used.
  EXPECT_EQ(control({"set", "one", "core=60"}).status, 0);
  EXPECT_EQ(control({"set", "two", "core=20"}).status, 0);
  const auto is_in_force = [&] {
    const auto seen = look(one), other = look(two);
    return seen && other && seen->compute.quota == 60 && other->compute.quota == 20;
  };
  EXPECT_TRUE(stage_.wait_until(is_in_force));
  EXPECT_GE(look(one).value_or(Seen{}).compute.used_ns, before.compute.used_ns);
  measure({&one, &two}, [&](const std::vector<Shares>& shares) {
    return shares[0].billed < 66 && shares[0].work > 1.2 * first[0].work && shares[1].billed < 25 &&
           shares[0].billed > 1.3 * shares[1].billed;
  });

  // Past 100 they are scaled; the mode is shown, changes of it are counted.
  const uint64_t changes = stage_.status()->gpus.at(0).compute_mode_changes;
  EXPECT_EQ(control({"set", "two", "core=90"}).status, 0);
  EXPECT_EQ(control({"set", "scheduling_mode=serial"}).status, 0);
  EXPECT_TRUE(stage_.wait_until([&] {
    const auto seen = look(one);
    return seen && seen->compute.quota == 40 && stage_.status()->gpus.at(0).compute_mode == "turns";
  }));
  EXPECT_GT(stage_.status()->gpus.at(0).compute_mode_changes, changes);
  EXPECT_TRUE(stage_.scheduler().logged("scheduling mode serial now (was auto)"));

  const Ran json = control({"status", "--json"});
  for (const char* field : {"\"quota\":", "\"share_window\":", "\"share\":", "\"throttled_time_ns\":", "\"debt_ns\":", "\"used_ns\":",
                            "\"compute_mode\":\"turns\"", "\"gpu_core_limit\":90"}) {
    EXPECT_NE(json.output.find(field), std::string::npos) << field << " is not in " << json.output;
  }
  const Ran table = control({"status"});
  EXPECT_NE(table.output.find("CORE LIMIT"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("40.0 %"), std::string::npos) << table.output;

  // Refused by name.
  EXPECT_NE(control({"set", "scheduling_mode=fast"}).output.find("scheduling_mode"), std::string::npos);
  EXPECT_NE(control({"set", "quota_carryover_percent=101"}).output.find("quota_carryover_percent"), std::string::npos);
  EXPECT_NE(control({"set", "nobody", "core=50"}).output.find("nobody"), std::string::npos);

  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

// What NVML says of each tenant's processes is shown beside what was billed: they agree while only clients run, and no longer once a
// program that is no client takes its part of the limited tenant's turns.
TEST_F(ComputeLimits, AreComparedWithWhatNvmlSays) {
  stage_.start_scheduler();
  const Arguments steady = {"steady", "--work", std::to_string(kWork_us)};
  Child& one = stage_.start_tenant("one", {steady, steady}, 0, 80);
  const auto gpu_is = [&](const std::function<bool(const protocol::admin::GpuReport&, const ComputeReport&)>& so) {
    const auto report = stage_.status();
    const auto seen = look(one);
    return report && seen && seen->compute.nvml_share >= 0 && so(report->gpus.at(0), seen->compute);
  };
  // A busy machine keeps a program from using all of its turns.
  EXPECT_TRUE(stage_.wait_until([&] {
    return gpu_is([](const auto& gpu, const ComputeReport& compute) {
      return gpu.nvml_span_ns >= 1'000'000'000 && compute.nvml_billed > 20 && compute.nvml_share > 0.4 * compute.nvml_billed &&
             compute.nvml_share < compute.nvml_billed + 15 && gpu.nvml_others >= 0 && gpu.nvml_others < 5 && gpu.nvml_unknown.empty();
    });
  })) << control({"status", "--json"}).output;

  Child& bare = stage_.start_bare("bare", steady);
  EXPECT_TRUE(stage_.wait_until([&] {
    return gpu_is([](const auto& gpu, const ComputeReport& compute) {
      return gpu.nvml_others > 20 && compute.nvml_share + 10 < compute.nvml_billed && !compute.nvml_differs;
    });
  })) << control({"status", "--json"}).output;
  const Ran table = control({"status"});
  EXPECT_NE(table.output.find("BY NVML"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("went to programs that are no clients"), std::string::npos) << table.output;

  // Without a limit nothing is billed, and NVML is not asked.
  EXPECT_EQ(control({"set", "one", "core=100"}).status, 0);
  EXPECT_TRUE(stage_.wait_until([&] {
    const auto report = stage_.status();
    return report && report->gpus.at(0).nvml_span_ns == 0 && report->gpus.at(0).nvml_others < 0;
  }));
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  EXPECT_FALSE(bare.running());
}

// The scheduler is killed and comes back while limited programs run: who is whose, and the limits, also one that was set by hand. Then
// once more, with a file that it cannot make anything of.
TEST_F(ComputeLimits, HoldAfterTheSchedulerWasRestarted) {
  stage_.start_scheduler();
  const Arguments steady = {"steady", "--work", std::to_string(kWork_us)};
  Child& one = stage_.start_tenant("one", {steady, steady}, 100 << 20, 20);
  Child& two = stage_.start_tenant("two", {steady}, 0, 90);
  ASSERT_TRUE(stage_.wait_until([&] { return work_of(one) > 0 && work_of(two) > 0; }));
  EXPECT_EQ(control({"set", "two", "core=60"}).status, 0);
  EXPECT_EQ(control({"set", "two", "memory=90M"}).status, 0);
  const auto before = stage_.status();
  ASSERT_TRUE(before);

  const auto all_are_back = [&] {
    const auto report = stage_.status();
    return report && report->clients.size() == 3;
  };
  // What is on the accounts is written about once a second.
  const std::string file = stage_.runtime_directory() + "/tenants";
  const int64_t used = look(two).value_or(Seen{}).compute.used_ns;
  EXPECT_GT(used, 0);
  EXPECT_TRUE(stage_.wait_until([&] { return used_in(file) >= used; }));
  stage_.kill_scheduler();
  stage_.start_scheduler();
  ASSERT_TRUE(stage_.wait_until(all_are_back));
  EXPECT_GE(look(two).value_or(Seen{}).compute.used_ns, used) << "what was used is forgotten";
  const auto after = stage_.status();
  ASSERT_TRUE(after);
  ASSERT_EQ(after->tenants.size(), 2u) << "the processes of one run are one tenant";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after->tenants[i].id, before->tenants[i].id);
    EXPECT_EQ(after->tenants[i].name, before->tenants[i].name);
    EXPECT_EQ(after->tenants[i].kind, "run");
    EXPECT_EQ(after->tenants[i].gpu_core_limit, before->tenants[i].gpu_core_limit);
    EXPECT_EQ(after->tenants[i].gpu_memory_limit, before->tenants[i].gpu_memory_limit);
  }
  measure({&two, &one}, [](const std::vector<Shares>& shares) {
    return shares[0].billed < 66 && shares[0].work > 3 && shares[1].billed < 25 && shares[0].billed > 1.3 * shares[1].billed;
  });

  stage_.kill_scheduler();
  ASSERT_EQ(truncate(file.c_str(), 40), 0);
  stage_.start_scheduler();
  ASSERT_TRUE(stage_.wait_until(all_are_back));
  EXPECT_TRUE(stage_.scheduler().logged(file + " is damaged"));
  EXPECT_EQ(stage_.status()->tenants.size(), 3u) << "nobody knows any more that two of them are one";

  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
