// What a recording becomes, held against the format's rules and against the policy's own figures.
#include "replay/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "scheduler/trace_ring.h"

namespace nvshare::replay {
namespace {

using nlohmann::json;
using policy::Instant;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kSecond = 1'000'000'000;

// Two clients that do not fit together, on virtual time: each does at once what it is asked, copies at 1 GiB/s.
class Recorder {
 public:
  Recorder() {
    policy::Config config;
    config.switch_time_mode = policy::SwitchTimeMode::kFixed;
    config.switch_time_fixed = 5 * kSecond;
    state_ = policy::make_state(config);
    lines_ = {scheduler::encode_trace(scheduler::TraceStart{"1.2.3", config})};
    lines_.push_back(scheduler::encode_trace(scheduler::TraceNames{1, "python3", 4711, 1, "ann's", "Stand-in, GPU-1"}));
    for (const int32_t client : {1, 2})
      ring_.name({static_cast<uint64_t>(client), "job", client, static_cast<uint64_t>(client), "t", "G"}, now_);
    event(policy::GpuAppeared{0, 16 * kGiB});
    event(policy::HostMemory{100 * kGiB});
    for (policy::ClientId client : {1, 2}) {
      event(policy::ClientJoined{client, 0, client, 0, {12 * kGiB, 0, 0}, true, false, false});
      event(policy::LockRequested{client});
    }
  }

  void event(const policy::Event& event) {
    lines_.push_back(scheduler::encode_trace(scheduler::TraceEvent{now_, event}));
    for (const policy::Action& action : policy::step(*state_, event, now_)) {
      if (const auto* lock = std::get_if<policy::SendLock>(&action)) locks_.push_back(*lock);
      if (const auto* drop = std::get_if<policy::SendDrop>(&action)) drops_.push_back(*drop);
      if (const auto* evict = std::get_if<policy::SendEvict>(&action)) evictions_.push_back(*evict);
    }
    ring_.happened(*state_, event, now_);
  }

  // What the clients do, until `end`.
  void play(Instant end) {
    while (now_ < end) {
      now_ += kSecond / 10;
      if (const auto deadline = policy::next_deadline(*state_); deadline && *deadline <= now_) event(policy::Tick{});
      for (const auto& drop : std::exchange(drops_, {}))
        event(policy::LockReleased{drop.client, drop.grant, {12 * kGiB, 12 * kGiB, 0}, false}), event(policy::LockRequested{drop.client});
      for (const auto& evict : std::exchange(evictions_, {})) move(evict.client, evict.eviction, true);
      for (const auto& lock : std::exchange(locks_, {})) {
        if (lock.budget >= 12 * kGiB && resident_[lock.client] < 12 * kGiB) move(lock.client, lock.grant, false);
      }
    }
  }

  // In two messages, as clients tell.
  void move(policy::ClientId client, uint64_t id, bool out) {
    for (int part : {1, 2}) {
      now_ += 6 * kSecond / 10;
      resident_[client] = out ? (2 - part) * 6 * kGiB : part * 6 * kGiB;
      event(policy::SwapProgressed{
          client, out, part == 2, false, id, part * 6 * kGiB, part * 6 * kSecond / 10, {12 * kGiB, resident_[client], 0}});
    }
  }

  const std::vector<std::string>& lines() const { return lines_; }
  std::vector<policy::ClientView> clients() const { return policy::view(*state_, now_)[0].clients; }
  Instant now() const { return now_; }
  scheduler::TraceRing& ring() { return ring_; }
  const policy::State& state() const { return *state_; }

  // All that the ring has, in its parts.
  std::vector<std::string> remembered(policy::Duration last = 0) const {
    std::vector<std::string> lines;
    scheduler::TraceRing::Part part;
    do {
      part = ring_.read(part.next, last, now_);
      EXPECT_LE(part.lines.size(), scheduler::TraceRing::kLinesMost + 8);
      lines.insert(lines.end(), part.lines.begin(), part.lines.end());
    } while (part.more);
    return lines;
  }

 private:
  policy::StatePointer state_;
  Instant now_ = 1000 * kSecond;
  scheduler::TraceRing ring_;
  std::vector<std::string> lines_;
  std::map<policy::ClientId, int64_t> resident_;
  std::vector<policy::SendLock> locks_;
  std::vector<policy::SendDrop> drops_;
  std::vector<policy::SendEvict> evictions_;
};

json picture_of(const std::vector<std::string>& lines) {
  ChromeTrace trace;
  for (const std::string& line : lines) {
    const auto added = trace.add(line);
    EXPECT_TRUE(added) << added.error().text << ": " << line;
  }
  return json::parse(trace.finish());
}

// The rules of the format, as far as a reader depends on them.
void check_rules(const json& picture) {
  std::set<std::pair<int, int>> named;
  std::map<std::pair<int, int>, double> ends;
  for (const json& event : picture.at("traceEvents")) {
    const std::string kind = event.at("ph");
    ASSERT_TRUE(kind == "M" || kind == "X" || kind == "C") << event;
    ASSERT_FALSE(event.at("name").get<std::string>().empty()) << event;
    ASSERT_TRUE(event.at("pid").is_number_integer()) << event;
    if (kind == "M") {
      ASSERT_TRUE(event.at("args").contains("name") || event.at("args").contains("sort_index")) << event;
      if (event.at("name") == "thread_name") named.emplace(event.at("pid").get<int>(), event.at("tid").get<int>());
      continue;
    }
    ASSERT_GE(event.at("ts").get<double>(), 0) << event;
    if (kind == "C") {
      for (const auto& value : event.at("args")) ASSERT_TRUE(value.is_number()) << event;
      continue;
    }
    const std::pair<int, int> track{event.at("pid").get<int>(), event.at("tid").get<int>()};
    ASSERT_TRUE(named.count(track)) << "a slice before its track's name: " << event;
    ASSERT_GT(event.at("dur").get<double>(), 0) << event;
    ASSERT_GE(event.at("ts").get<double>(), ends[track] - 1e-3) << "slices of a track overlap: " << event;
    ends[track] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
}

// Of all tracks whose name begins so: what slices of that name add up to, in ns or bytes.
double sum(const json& picture, const std::string& of_track, const std::string& name) {
  std::set<int> tracks;
  double sum = 0;
  for (const json& event : picture.at("traceEvents")) {
    if (event.at("name") == "thread_name" && event.at("args").at("name").get<std::string>().rfind(of_track, 0) == 0)
      tracks.insert(event.at("tid").get<int>());
    if (event.at("ph") != "X" || tracks.count(event.at("tid").get<int>()) == 0 || event.at("name") != name) continue;
    sum += name.rfind("swap", 0) == 0 ? event.at("args").at("bytes").get<double>() : event.at("dur").get<double>() * 1000;
  }
  return sum;
}

void check_sums(const json& picture, const std::vector<policy::ClientView>& clients) {
  for (const auto& client : clients) {
    const std::string track = "client " + std::to_string(client.client);
    EXPECT_NEAR(sum(picture, track, "running") + sum(picture, track, "dropping"), static_cast<double>(client.time_running), 1000);
    EXPECT_NEAR(sum(picture, track, "waiting"), static_cast<double>(client.time_waiting), 1000);
    EXPECT_NEAR(sum(picture, track, "loading"), static_cast<double>(client.time_swapping), 1000);
    EXPECT_EQ(sum(picture, track, "swap out"), static_cast<double>(client.swapped_out_total));
    EXPECT_EQ(sum(picture, track, "swap in"), static_cast<double>(client.swapped_in_total));
  }
}

TEST(ChromeTrace, SlicesAddUpToThePolicysFigures) {
  Recorder recorder;
  recorder.play(1060 * kSecond);
  const json picture = picture_of(recorder.lines());
  check_rules(picture);
  const auto clients = recorder.clients();
  ASSERT_EQ(clients.size(), 2u);
  for (const auto& client : clients) {
    EXPECT_GT(client.turns, 2u);
    EXPECT_GT(client.swapped_out_total, 0);
  }
  check_sums(picture, clients);
}

TEST(ChromeTrace, WhatASchedulerRemembersSaysTheSameAsItsRecording) {
  Recorder recorder;
  recorder.play(1050 * kSecond);
  const json picture = picture_of(recorder.remembered());
  check_rules(picture);
  check_sums(picture, recorder.clients());
}

TEST(ChromeTrace, OfAMinuteAgoTheSchedulerRemembersNoMoreThanItsState) {
  Recorder recorder;
  recorder.play(1100 * kSecond);
  recorder.play(1130 * kSecond);
  const Instant length = recorder.now() - 1100 * kSecond;
  ChromeTrace trace;
  for (const std::string& line : recorder.remembered(length)) ASSERT_TRUE(trace.add(line)) << line;
  EXPECT_NEAR(static_cast<double>(trace.summary().length), static_cast<double>(length), 1e9);
  const json picture = json::parse(trace.finish());
  check_rules(picture);
  EXPECT_GT(sum(picture, "client 1", "running"), 0);

  ChromeTrace all;
  for (const std::string& line : recorder.remembered()) ASSERT_TRUE(all.add(line)) << line;
  EXPECT_EQ(all.summary().clients, 2u);
  EXPECT_NEAR(static_cast<double>(all.summary().length), 63e9, 4e9);  // the entry before the oldest one has the beginning
}

TEST(ChromeTrace, TheSchedulersMemoryHasABound) {
  Recorder recorder;
  size_t most = 0;
  for (int64_t i = 0; i < 60'000; ++i) {
    recorder.event(policy::MemoryBelieved{1, {12 * kGiB, (i % 2) * 6 * kGiB, 0}});
    most = std::max(most, recorder.ring().bytes());
  }
  EXPECT_LE(most, scheduler::TraceRing::kBytesMost);
  EXPECT_GT(most, scheduler::TraceRing::kBytesMost / 2);
  const std::vector<std::string> lines = recorder.remembered();
  check_rules(picture_of({lines.begin(), lines.begin() + 2000}));
  // Where a reader that was too slow goes on, it is told that it begins anew.
  EXPECT_EQ(recorder.ring().read(1, 0, recorder.now()).lines[0].find("{\"release\""), 0u);
}

TEST(ChromeTrace, NamesAndReasonsAreInIt) {
  Recorder recorder;
  recorder.play(1030 * kSecond);
  const std::string text = picture_of(recorder.lines()).dump();
  for (const char* name : {"tenant 1: ann's", "client 1: python3 (pid 4711)", "GPU 0: Stand-in, GPU-1", "tenant 2"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
  EXPECT_NE(text.find("\"for\":\""), std::string::npos);
  EXPECT_NE(text.find("client 2: turns"), std::string::npos);
}

TEST(ChromeTrace, APausedTenantsClientIsHeldInIt) {
  Recorder recorder;
  recorder.play(1005 * kSecond);
  recorder.event(policy::TenantSuspended{2, true});
  recorder.play(1030 * kSecond);
  recorder.event(policy::TenantSuspended{2, false});
  recorder.play(1040 * kSecond);
  for (const auto& lines : {recorder.lines(), recorder.remembered()}) {
    const json picture = picture_of(lines);
    const auto is_held = [](const json& event) { return event["ph"] == "X" && event["name"] == "held"; };
    const auto held = std::find_if(picture["traceEvents"].begin(), picture["traceEvents"].end(), is_held);
    ASSERT_NE(held, picture["traceEvents"].end());
    EXPECT_EQ((*held)["args"]["for"], "its tenant to be resumed: it was paused");
    const std::string text = picture.dump();
    EXPECT_NE(text.find("\"name\":\"paused\""), std::string::npos) << "its tenant's track";
  }
}

TEST(ChromeTrace, AClientThatLeftAndASchedulerThatBeganAnewEndTheirSlices) {
  Recorder recorder;
  recorder.play(1020 * kSecond);
  recorder.event(policy::ClientLeft{1, true});
  recorder.play(1030 * kSecond);
  std::vector<std::string> lines = recorder.lines();
  const std::vector<std::string> first(lines);
  lines.insert(lines.end(), first.begin(), first.begin() + 3);  // the next scheduler's beginning
  check_rules(picture_of(first));
  ChromeTrace trace;
  for (const std::string& line : first) ASSERT_TRUE(trace.add(line));
  EXPECT_EQ(trace.summary().clients, 2u);
  const json picture = json::parse(trace.finish());
  for (const json& event : picture.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_LE(event.at("ts").get<double>() + event.at("dur").get<double>(), 60e6) << event;
  }
  check_rules(picture_of(lines));
}

TEST(ChromeTrace, RefusesWhatIsNoBeginning) {
  ChromeTrace trace;
  const auto early = trace.add(R"({"now":1,"event":"Tick"})");
  ASSERT_FALSE(early);
  EXPECT_NE(std::string(early.error().text).find("not the beginning of a recording"), std::string::npos) << early.error().text;
  EXPECT_FALSE(trace.add("nonsense"));
}

}  // namespace
}  // namespace nvshare::replay
