#include "scheduler/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "scheduler/settings.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

template <typename... Numbers>
std::string text(std::string name, Numbers... numbers) {
  ((name += " " + std::to_string(numbers)), ...);
  return name;
}

// All that distinguishes one action from another, worked out apart from the codec.
struct Describer {
  std::string operator()(const policy::SendLock& a) const { return text("lock", a.client, a.grant, a.budget, a.budget_sequence); }
  std::string operator()(const policy::SendDrop& a) const { return text("drop", a.client, a.grant, a.together, a.attempt, a.tells_end); }
  std::string operator()(const policy::SendKeep& a) const { return text("keep", a.client, a.grant); }
  std::string operator()(const policy::SendEvict& a) const { return text("evict", a.client, a.eviction, a.bytes); }
  std::string operator()(const policy::SendWait& a) const { return text("wait", a.client, a.request); }
  std::string operator()(const policy::SendMemory& a) const {
    return text("memory", a.client, a.request, a.granted, a.budget, a.budget_sequence);
  }
  std::string operator()(const policy::SendContention& a) const {
    return text("contention", a.client, a.waiters, a.memory_waiters, a.swap_cost, a.limited, a.idle_release, a.gang_runs, a.pause, a.held);
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
      {102 * kSecond, policy::EndsSoon{2, 1, 1}},
      {103 * kSecond, policy::LockReleased{2, 1, all, false}},
      {104 * kSecond, policy::SwapProgressed{2, true, true, false, 1, 12 * kGiB, 7, none, 0, false, kGiB}},
      {105 * kSecond, policy::ConfigChanged{}},
      {106 * kSecond, policy::ClientLeft{2, false}},
      {107 * kSecond, policy::ClientMemoryFreed{2}},
  };
}

std::vector<std::string> words_of(const policy::Actions& actions) {
  std::vector<std::string> words;
  for (const policy::Action& action : actions) words.push_back(std::visit(Describer{}, action));
  return words;
}

std::vector<std::string> run(const policy::Config& config, const std::vector<TraceEvent>& events, TraceWriter* writer = nullptr) {
  auto state = policy::make_state(config);
  std::vector<std::string> log;
  for (const TraceEvent& traced : events) {
    const policy::Actions actions = policy::step(*state, traced.event, traced.now);
    log.push_back(std::to_string(traced.now));
    for (const std::string& action : words_of(actions)) log.push_back(action);
    if (writer != nullptr) writer->write(traced.event, actions, policy::next_deadline(*state), traced.now);
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
  std::vector<std::string> original;
  {
    auto writer = TraceWriter::open(file, config);
    ASSERT_TRUE(writer);
    original = run(config, day(), &*writer);
  }
  std::ifstream stream(file);
  std::string line;
  std::optional<TraceStart> start;
  std::vector<TraceEvent> replayed;
  std::vector<std::string> recorded;  // as run() has it
  while (std::getline(stream, line)) {
    auto decoded = decode_trace(line);
    ASSERT_TRUE(decoded) << decoded.error().text;
    EXPECT_EQ(encode_trace(*decoded), line);
    if (auto* event = std::get_if<TraceEvent>(&*decoded)) {
      replayed.push_back(*event);
      recorded.push_back(std::to_string(event->now));
      for (const std::string& action : words_of(event->answers)) recorded.push_back(action);
    } else {
      start = std::get<TraceStart>(*decoded);
    }
  }
  ASSERT_TRUE(start && start->config);
  EXPECT_EQ(start->release, NVSHARE_VERSION);
  EXPECT_TRUE(start->has_answers && start->has_wakes);
  EXPECT_EQ(run(*start->config, replayed), original);
  original.erase(std::remove_if(original.begin(), original.end(), [](const auto& is) { return is.starts_with("note "); }), original.end());
  EXPECT_EQ(recorded, original);
  EXPECT_GT(original.size(), day().size() + 5) << "the day must have had actions";
}

TEST(Trace, HoldsWhenThePolicyAskedToBeWokenWhereThatChanges) {
  TestFolder folder;
  const std::string file = folder.path() + "/trace";
  {
    auto writer = TraceWriter::open(file, {});
    ASSERT_TRUE(writer);
    run({}, day(), &*writer);
  }
  std::ifstream stream(file);
  const auto state = policy::make_state({});
  Wake wake;
  size_t changes = 0, events = 0;
  for (std::string line; std::getline(stream, line);) {
    const auto decoded = decode_trace(line);
    ASSERT_TRUE(decoded) << line;
    const auto* traced = std::get_if<TraceEvent>(&*decoded);
    if (traced == nullptr) continue;
    ++events;
    policy::step(*state, traced->event, traced->now);
    if (traced->wake) {
      ++changes;
      EXPECT_NE(*traced->wake, wake) << line;
      wake = *traced->wake;
    }
    EXPECT_EQ(wake, policy::next_deadline(*state)) << line;
  }
  EXPECT_GT(changes, 2u);
  EXPECT_LT(changes, events);
}

TEST(Trace, HoldsEveryActionButNotes) {
  const policy::Actions actions = {policy::SendLock{1, 2, 3, 4},
                                   policy::SendDrop{1, 2, true, 3, true},
                                   policy::SendKeep{1, 2},
                                   policy::SendEvict{1, 2, 3},
                                   policy::SendWait{1, 2},
                                   policy::SendMemory{1, 2, true, 3, 4},
                                   policy::SendAskProgress{1, 2, true},
                                   policy::SendCeiling{1, 2},
                                   policy::SendPrefetch{1, 2, 3},
                                   policy::SendContention{1, 2, 3, 4, true, 5, true, 6, true}};
  std::set<size_t> kinds;
  for (const policy::Action& action : actions) kinds.insert(action.index());
  ASSERT_EQ(kinds.size() + 1, std::variant_size_v<policy::Action>) << "an action is missing here";
  policy::Actions noted = actions;
  noted.insert(noted.begin(), policy::Note{policy::Note::Level::kInfo, 1, "for people", {}, 0});
  const std::string line = encode_trace(TraceEvent{7, policy::Tick{}, noted});
  EXPECT_EQ(line.find("for people"), std::string::npos) << line;
  const auto decoded = decode_trace(line);
  ASSERT_TRUE(decoded) << decoded.error().text;
  EXPECT_EQ(words_of(std::get<TraceEvent>(*decoded).answers), words_of(actions));
  EXPECT_EQ(encode_answers(noted), encode_answers(actions));
  EXPECT_EQ(encode_answers(actions).size(), actions.size());
  EXPECT_EQ(encode_answers({policy::SendKeep{8, 9}}), std::vector<std::string>{R"({"action":"SendKeep","client":8,"grant":9})"});
}

TEST(Trace, AnActionOfALaterReleaseIsRefused) {
  const auto unknown = decode_trace(R"({"answers":[{"action":"SendParty","client":3}],"event":"Tick","now":1})");
  ASSERT_FALSE(unknown);
  EXPECT_NE(std::string(unknown.error().text).find("no such action: SendParty"), std::string::npos) << unknown.error().text;
  EXPECT_FALSE(decode_trace(R"({"answers":[{"action":"SendKeep","client":3}],"event":"Tick","now":1})")) << "it lacks a member";
}

TEST(Trace, ASchedulerThatComesAfterAKilledOneBeginsInALineOfItsOwn) {
  TestFolder folder;
  const std::string file = folder.path() + "/trace";
  ASSERT_TRUE(TraceWriter::open(file, {}));
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_TRUE(TraceWriter::open(file, {}));
  std::ofstream(file, std::ios::app) << R"({"event":"Ti)";
  ASSERT_TRUE(TraceWriter::open(file, {}));
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2], R"({"event":"Ti)");
  for (const size_t whole : {0, 1, 3}) EXPECT_TRUE(decode_trace(lines[whole])) << lines[whole];
}

TEST(Trace, ALinkOfAnotherUserIsNotWrittenThrough) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a link away";
  TestFolder folder;
  const std::string ours = folder.path() + "/ours", file = folder.path() + "/trace";
  std::ofstream(ours) << "precious";
  ASSERT_EQ(symlink(ours.c_str(), file.c_str()), 0);
  ASSERT_EQ(lchown(file.c_str(), 4711, 4711), 0);
  const auto refused = TraceWriter::open(file, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("a link of another user"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(ours), 8u);
  ASSERT_EQ(lchown(file.c_str(), 0, 0), 0);
  EXPECT_TRUE(TraceWriter::open(file, {}));
  EXPECT_GT(std::filesystem::file_size(ours), 8u);
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

TEST(Trace, HoldsEachSettingOfThePolicy) {
  Settings settings;
  for (const auto& [name, text] : Texts{{"switch_time_mode", "fixed"},
                                        {"switch_time_fixed", "1.5"},
                                        {"memory_reserve_percent", "7"},
                                        {"gang_turns", "off"},
                                        {"compute_window_ms", "2000"},
                                        {"prefetch", "on"}}) {
    auto changed = change_settings(settings, {{name, text}});
    ASSERT_TRUE(changed) << changed.error().text;
    settings = *changed;
  }
  const std::string line = encode_trace(TraceStart{"1.0", settings.policy});
  for (const char* part : {"\"switch_time_mode\":\"fixed\"", "\"switch_time_fixed\":1500000000", "\"memory_reserve_percent\":7",
                           "\"gang_turns\":false", "\"compute_window\":2000000000", "\"prefetch\":true", "\"quota_carryover_percent\":null",
                           "\"latency_target\":50000000", "\"reserve_fixed\":"})
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  const auto decoded = decode_trace(line);
  ASSERT_TRUE(decoded) << decoded.error().text;
  const policy::Config read = *std::get<TraceStart>(*decoded).config;
  size_t settings_of_policy = 0;
  for (const SettingSpec& spec : setting_specs()) {
    if (!spec.traced) continue;
    ++settings_of_policy;
    EXPECT_EQ(spec.traced->get(read), spec.traced->get(settings.policy)) << spec.name;
  }
  EXPECT_GE(settings_of_policy, 16u);
}

// A release that lacked a setting wrote no value of it, and behaved as if it was not set.
TEST(Trace, OfAnEarlierReleaseIsRead) {
  const auto decoded = decode_trace(R"({"config":{"switch_time_fixed":3000000000,"scheduling_mode":"serial","reserve_fixed":1,)"
                                    R"("overhead_default":2,"departed_grace":3,"watched_grace":4},"release":"0.1.0"})");
  ASSERT_TRUE(decoded) << decoded.error().text;
  const policy::Config config = *std::get<TraceStart>(*decoded).config;
  EXPECT_EQ(config.switch_time_fixed, 3'000'000'000);
  EXPECT_EQ(config.scheduling_mode.name, "serial");
  EXPECT_EQ(config.watched_grace, 4);
  EXPECT_EQ(config.latency_target, policy::Config{}.latency_target);
  EXPECT_FALSE(config.prefetch);
}

TEST(Trace, EventsOfRelease02AreRead) {
  const auto event_of = [](const char* line) {
    const auto decoded = decode_trace(line);
    EXPECT_TRUE(decoded) << decoded.error().text;
    return decoded ? std::get<TraceEvent>(*decoded).event : policy::Event(policy::Tick{});
  };
  const auto joined = event_of(
      R"({"client":3,"ends":false,"event":"ClientJoined","gang":true,"gpu":0,"has_lock":false,"memory":{"allocated":5,"resident":0,)"
      R"("unswappable":0},"now":7,"overhead":null,"priority":0,"process":1,"proven":true,"replaces":[],"swappable":true,"tenant":2,)"
      R"("wants_lock":false})");
  ASSERT_TRUE(std::holds_alternative<policy::ClientJoined>(joined));
  EXPECT_EQ(std::get<policy::ClientJoined>(joined).memory.allocated, 5);
  const auto released = event_of(
      R"({"client":3,"early":true,"event":"LockReleased","grant":1,"idle":0,"memory":{"allocated":5,"resident":5,"unswappable":0},"now":9,)"
      R"("used":4})");
  ASSERT_TRUE(std::holds_alternative<policy::LockReleased>(released));
  EXPECT_EQ(std::get<policy::LockReleased>(released).used, 4);
  EXPECT_TRUE(std::holds_alternative<policy::LockPaused>(event_of(R"({"client":3,"event":"LockPaused","grant":1,"now":9,"used":null})")));
  EXPECT_TRUE(std::holds_alternative<policy::ClientShares>(event_of(R"({"client":3,"event":"ClientShares","group":1,"now":9})")));
  EXPECT_TRUE(std::holds_alternative<policy::HostMemory>(event_of(R"({"available":3,"event":"HostMemory","now":9})")));
  EXPECT_TRUE(std::holds_alternative<policy::SwapProgressed>(
      event_of(R"({"client":3,"copied":1,"elapsed":2,"event":"SwapProgressed","failed":false,"finished":true,"id":1,)"
               R"("memory":{"allocated":5,"resident":5,"unswappable":0},"now":9,"out":true,"unmoved":0})")));
}

TEST(Trace, AValueThatASettingCannotHaveIsRefused) {
  for (const char* wrong : {R"("gang_turns":"on")", R"("switch_time_fixed":"soon")", R"("switch_time_mode":3)", R"("prefetch":null)",
                            R"("reserve_fixed":"much")", R"("switch_time_fixed":[1])"}) {
    std::string line = encode_trace(TraceStart{"1.0", policy::Config{}});
    ASSERT_TRUE(decode_trace(line));
    const std::string name(wrong, strchr(wrong, ':') + 1);
    const size_t at = line.find(name), end = line.find_first_of(",}", at);
    ASSERT_NE(at, std::string::npos) << name << " in " << line;
    EXPECT_FALSE(decode_trace(line.replace(at, end - at, wrong))) << line;
  }
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
