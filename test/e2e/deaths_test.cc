// Programs that die at any moment: nobody else notices, and what they held is free at once.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"
#include "scheduler/trace.h"

namespace nvshare::e2e {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kLockFreeWithin_ns = 100'000'000;

// When the policy was told that each client left, from the scheduler's trace.
std::map<uint64_t, int64_t> departures(const std::string& trace_file) {
  std::map<uint64_t, int64_t> left;
  std::ifstream stream(trace_file);
  for (std::string line; std::getline(stream, line);) {
    auto decoded = scheduler::decode_trace(line);
    const auto* traced = decoded ? std::get_if<scheduler::TraceEvent>(&*decoded) : nullptr;
    if (traced == nullptr) continue;
    if (const auto* leaving = std::get_if<policy::ClientLeft>(&traced->event)) left[leaving->client] = traced->now;
  }
  return left;
}

struct Death {
  uint64_t client;
  std::string state;  // when last looked at
  int64_t died_ns;
};

class Killer {
 public:
  Killer(Stage& stage, uint64_t purpose) : stage_(stage), random_(generator(purpose)) {}

  // Some of them have a forked child that lives on.
  Child& start_victim() {
    bool forks = random_() % 2 == 0;
    std::string name = "victim-" + std::to_string(++started_);
    if (forks) return stage_.start(name, {"fork", "--hold", "70M", "--steps", "1000000"});
    return stage_.start(name, {"mix", "--seed", std::to_string(started_), "--hold", "70M", "--largest", "50M"});
  }

  // At a random moment of its life.
  void kill_one(Child& victim) {
    usleep(static_cast<useconds_t>(between(random_, 20'000, 250'000)));
    auto client = stage_.client_of(victim.pid());
    EXPECT_TRUE(victim.running()) << victim.log();
    victim.signal(SIGKILL);
    ASSERT_TRUE(victim.wait(moments()));
    if (client) deaths_.push_back({client->id, client->state, victim.ended_at_ns()});
    EXPECT_FALSE(victim.logged("FAILED")) << victim.log();
    EXPECT_FALSE(victim.logged("simgpu: fault")) << victim.log();
  }

  const std::vector<Death>& deaths() const { return deaths_; }

 private:
  Stage& stage_;
  std::mt19937_64 random_;
  int started_ = 0;
  std::vector<Death> deaths_;
};

// The time from a process's death, as the kernel tells its parent, to the policy's hearing of it, which frees its lock.
void expect_free_in_time(const std::vector<Death>& deaths, const std::map<uint64_t, int64_t>& left) {
  std::vector<int64_t> late;
  std::vector<int64_t> all;
  int running = 0;
  for (const Death& death : deaths) {
    auto at = left.find(death.client);
    ASSERT_NE(at, left.end()) << "client " << death.client << " never left";
    all.push_back(at->second - death.died_ns);
    running += death.state == "running" ? 1 : 0;
    if (all.back() > kLockFreeWithin_ns * kSlowness) late.push_back(all.back());
  }
  ASSERT_FALSE(all.empty());
  std::sort(all.begin(), all.end());
  std::cout << all.size() << " clients died (" << running << " with the lock); the policy heard of it " << all[all.size() / 2] / 1e6
            << " ms (median), " << all.back() / 1e6 << " ms (longest) after the death\n";
  // One in a hundred may be the machine's own doing: it is busy on purpose.
  EXPECT_LE(late.size(), deaths.size() / 100) << "the longest took " << all.back() / 1e6 << " ms";
}

TEST(Deaths, KilledAtRandomMoments) {
  Stage stage;
  stage.start_scheduler();
  std::vector<Child*> others;
  for (int i = 0; i < 2; ++i) {
    others.push_back(
        &stage.start("bystander-" + std::to_string(i), {"mix", "--seed", std::to_string(i), "--hold", "90M", "--largest", "60M"}));
  }
  Killer killer(stage, 2);
  std::vector<Child*> victims;
  for (int i = 0; i < 3; ++i) victims.push_back(&killer.start_victim());
  auto random = generator(3);
  for (int i = 0; i < scaled(200, 20) && !testing::Test::HasFailure(); ++i) {
    Child*& victim = victims[random() % victims.size()];
    killer.kill_one(*victim);
    for (Child* other : others) ASSERT_TRUE(other->running()) << other->log();
    stage.forget(*victim);
    victim = &killer.start_victim();
  }
  for (Child* victim : victims) {
    victim->signal(SIGKILL);
    ASSERT_TRUE(victim->wait(moments()));
    stage.forget(*victim);
  }
  // The dead leave nothing behind: what is used on the GPU is the two that live.
  EXPECT_TRUE(stage.wait_until(
      [&] {
        auto report = stage.status();
        return report && report->clients.size() == 2 && report->gpus[0].departed == 0;
      },
      moments()));
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
  EXPECT_EQ(stage.gpu_counters().used_bytes, 0u);
  stage.stop_scheduler();
  expect_free_in_time(killer.deaths(), departures(stage.trace_file()));
}

// The one that holds the lock dies while its forked child, which holds copies of nothing of ours, lives on; the waiting one runs next.
TEST(Deaths, AWaitingProgramRunsWhenTheHolderDies) {
  StageOptions options;
  options.switch_time = "600";  // no turn ends by itself
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < scaled(10, 3); ++i) {
    std::string number = std::to_string(i);
    Child& holder = stage.start("holder-" + number, {"fork", "--hold", "120M", "--steps", "1000000"});
    ASSERT_TRUE(stage.wait_until([&] {
      auto client = stage.client_of(holder.pid());
      return client && client->state == "running" && client->allocated > (100 << 20);
    }));
    Child& waiter = stage.start("waiter-" + number, {"mix", "--steps", "20", "--hold", "120M", "--largest", "100M"});
    usleep(100'000);
    holder.signal(SIGKILL);
    ASSERT_TRUE(holder.wait(moments()));
    stage.expect_success(waiter);
    stage.forget(holder);
    stage.forget(waiter);
  }
  stage.expect_gpu_unharmed();
}

// The device takes a while to give back what a dead process had; nobody is granted memory that is not there yet.
TEST(Deaths, MemoryComesBackLate) {
  StageOptions options;
  options.gpu["SIMGPU_RECLAIM_DELAY_MS"] = "300";
  Stage stage(options);
  stage.start_scheduler();
  Child& bystander = stage.start("bystander", {"mix", "--hold", "100M", "--largest", "80M"});
  Killer killer(stage, 4);
  for (int i = 0; i < scaled(20, 4) && !testing::Test::HasFailure(); ++i) {
    Child& victim = killer.start_victim();
    usleep(200'000);
    killer.kill_one(victim);
    stage.forget(victim);
    ASSERT_TRUE(bystander.running()) << bystander.log();
  }
  stage.tell_to_stop();
  stage.expect_success(bystander);
  stage.expect_gpu_unharmed();
}

// A program that is stopped (SIGSTOP) answers no drop: shown so, neighbours that fit go on beside it, and it goes on unharmed.
TEST(Deaths, StoppedProgramsHarmNobody) {
  StageOptions options;
  options.scheduler["NVSHARE_UNANSWERED_GRACE"] = "0.3";
  Stage stage(options);
  stage.start_scheduler();
  Child& sleeper = stage.start("sleeper", {"mix", "--hold", "100M", "--largest", "60M"});
  ASSERT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(sleeper.pid());
    return client && client->state == "running" && client->allocated > (60 << 20);
  }));
  sleeper.signal(SIGSTOP);
  stage.tell_to_go("large");
  Child& large = stage.start("large", {"hold", "--hold", "150M", "--go", stage.go_file("large")});
  Child& small = stage.start("small", {"mix", "--seed", "3", "--hold", "20M", "--largest", "8M", "--steps", "100"});
  EXPECT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(sleeper.pid());
    return client && client->state == "unresponsive";
  }));
  stage.expect_success(small);
  EXPECT_TRUE(large.running());
  sleeper.signal(SIGCONT);
  stage.expect_success(large);
  stage.tell_to_stop();
  stage.expect_success(sleeper);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
