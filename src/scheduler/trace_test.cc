#include "scheduler/trace.h"

#include <gtest/gtest.h>

#include <fstream>

#include "scheduler/test_client.h"

namespace nvshare::scheduler {
namespace {

template <typename... Numbers>
std::string text(std::string name, Numbers... numbers) {
  ((name += " " + std::to_string(numbers)), ...);
  return name;
}

// All that distinguishes one action from another.
struct Describer {
  std::string operator()(const policy::SendLock& a) const { return text("lock", a.client, a.grant, a.budget, a.budget_sequence); }
  std::string operator()(const policy::SendDrop& a) const { return text("drop", a.client, a.grant, a.together, a.attempt); }
  std::string operator()(const policy::SendKeep& a) const { return text("keep", a.client, a.grant); }
  std::string operator()(const policy::SendEvict& a) const { return text("evict", a.client, a.eviction, a.bytes); }
  std::string operator()(const policy::SendWait& a) const { return text("wait", a.client, a.request); }
  std::string operator()(const policy::SendMemory& a) const {
    return text("memory", a.client, a.request, a.granted, a.budget, a.budget_sequence);
  }
  std::string operator()(const policy::SendContention& a) const {
    return text("contention", a.client, a.waiters, a.memory_waiters, a.swap_cost, a.limited, a.idle_release, a.gang_runs);
  }
  std::string operator()(const policy::SendAskProgress& a) const { return text("progress", a.client, a.question, a.counts); }
  std::string operator()(const policy::SendCeiling& a) const { return text("ceiling", a.client, a.ceiling); }
  std::string operator()(const policy::SendPrefetch& a) const { return text("prefetch", a.client, a.prefetch, a.budget); }
  std::string operator()(const policy::Note& a) const { return "note " + a.text; }
};

std::vector<TraceEvent> day() {
  constexpr int64_t kGiB = 1 << 30;
  constexpr int64_t kSecond = 1'000'000'000;
  policy::Memory none{12 * kGiB, 0, 0};
  policy::Memory all{12 * kGiB, 12 * kGiB, 0};
  return {
      {0, policy::GpuAppeared{0, 16 * kGiB}},
      {1, policy::HostMemory{100 * kGiB, 90 * kGiB, 9 * kGiB, 30 * kGiB, {{2, kGiB}}, true}},
      {2, policy::ClientJoined{1, 0, 1, 0, none, true, false, false}},
      {3, policy::ClientJoined{2, 0, 2, 0, none, true, false, true}},
      {4, policy::LockRequested{1}},
      {5, policy::ForeignMemory{0, 64 << 20}},
      {6, policy::ClientOverhead{1, 400 << 20}},
      {7, policy::SwapProgressed{2, false, true, false, 1, 5, 6, all}},
      {8, policy::MemoryChanged{2, all, 13 * kGiB, 1, 0, 0}},
      {9, policy::MemoryBelieved{2, all}},
      {9, policy::ClientIdle{2, 5}},
      {9, policy::MemoryHeld{7, 0, kGiB}},
      {10, policy::ComputeLimit{2, 40, 30}},
      {10, policy::TenantPriority{2, -3}},
      {10, policy::TenantEnds{2, true}},
      {10, policy::TenantSuspended{3, true}},
      {10, policy::TenantTurns{2, policy::TenantSharing::kTurns, kSecond}},
      {10, policy::ClientShares{2, 7, true}},
      {10, policy::ClientProgressed{2, 3, 4}},
      {10, policy::AccountKept{2, 0, -5, 100'000'000, 3 * kSecond, 1}},
      {11, policy::LockPaused{2, 1, 3}},
      {12, policy::LockResumed{2, 1}},
      {100 * kSecond, policy::Tick{}},
      {101 * kSecond, policy::DrainFailed{2, 1}},
      {102 * kSecond, policy::Tick{}},
      {102 * kSecond, policy::Drained{2, 1, 1}},
      {103 * kSecond, policy::LockReleased{2, 1, all, false}},
      {104 * kSecond, policy::SwapProgressed{2, true, true, false, 1, 12 * kGiB, 7, none, 0, false, kGiB}},
      {105 * kSecond, policy::ConfigChanged{}},
      {106 * kSecond, policy::ClientLeft{2, false}},
      {107 * kSecond, policy::ClientMemoryFreed{2}},
  };
}

std::vector<std::string> run(const policy::Config& config, const std::vector<TraceEvent>& events) {
  auto state = policy::make_state(config);
  std::vector<std::string> log;
  for (const TraceEvent& traced : events) {
    log.push_back(std::to_string(traced.now));
    for (const policy::Action& action : policy::step(*state, traced.event, traced.now)) log.push_back(std::visit(Describer{}, action));
  }
  return log;
}

TEST(Trace, ADayReplaysToTheSameActions) {
  TestFolder folder;
  std::string file = folder.path() + "/trace";
  policy::Config config;
  config.switch_time_mode = policy::SwitchTimeMode::kFixed;
  config.switch_time_fixed = 5'000'000'000;
  config.memory_reserve_percent = 7;
  {
    auto writer = TraceWriter::open(file, config);
    ASSERT_TRUE(writer);
    for (const TraceEvent& event : day()) writer->write(event);
  }
  std::ifstream stream(file);
  std::string line;
  std::optional<TraceStart> start;
  std::vector<TraceEvent> replayed;
  while (std::getline(stream, line)) {
    auto decoded = decode_trace(line);
    ASSERT_TRUE(decoded) << decoded.error().text;
    EXPECT_EQ(encode_trace(*decoded), line);
    if (auto* event = std::get_if<TraceEvent>(&*decoded)) {
      replayed.push_back(*event);
    } else {
      start = std::get<TraceStart>(*decoded);
    }
  }
  ASSERT_TRUE(start && start->config);
  EXPECT_EQ(start->release, NVSHARE_VERSION);
  std::vector<std::string> original = run(config, day());
  EXPECT_EQ(run(*start->config, replayed), original);
  EXPECT_GT(original.size(), day().size() + 5) << "the day must have had actions";
}

TEST(Trace, HoldsTheSchedulingModeByItsName) {
  for (const policy::SchedulingMode& mode : policy::kSchedulingModes) {
    policy::Config config;
    config.scheduling_mode = mode;
    auto decoded = decode_trace(encode_trace(TraceStart{"1.0", config}));
    ASSERT_TRUE(decoded) << decoded.error().text;
    EXPECT_EQ(std::get<TraceStart>(*decoded).config->scheduling_mode, mode) << mode.name;
  }
  std::string line = encode_trace(TraceStart{"1.0", policy::Config{}});
  const size_t at = line.find("\"auto\"", line.find("scheduling_mode"));
  ASSERT_NE(at, std::string::npos) << line;
  const auto refused = decode_trace(line.replace(at, 6, "\"fair\""));
  ASSERT_FALSE(refused) << "of a release that knows more modes: replayed in another, it would be another day";
  EXPECT_NE(std::string(refused.error().text).find("fair"), std::string::npos) << refused.error().text;
}

TEST(Trace, HoldsEveryEventThatThePolicyKnows) {
  std::vector<bool> seen(std::variant_size_v<policy::Event>);
  for (const TraceEvent& traced : day()) seen[traced.event.index()] = true;
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(seen[i]) << "event " << i << " is missing in this test's day";
}

TEST(Trace, RefusesWhatIsNoTrace) {
  for (const char* line : {"", "{}", "[]", "nonsense", R"({"now":1,"event":"Party"})", R"({"now":1,"event":"LockRequested"})",
                           R"({"event":"Tick"})", R"({"config":{}})"}) {
    EXPECT_FALSE(decode_trace(line)) << line;
  }
  EXPECT_FALSE(TraceWriter::open("/nonexistent/trace", {}));
}

}  // namespace
}  // namespace nvshare::scheduler
