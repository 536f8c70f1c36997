#include "replay/answers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace nvshare::replay {
namespace {

using policy::ClientId;
using policy::Instant;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kSecond = 1'000'000'000;

// What a scheduler records where two clients that do not fit together ask for the GPU, and the first gives it up.
std::vector<std::string> recorded(const policy::Config& config = {}, bool with_answers = true) {
  std::vector<std::string> lines = {scheduler::encode_trace(scheduler::TraceStart{"1.2.3", config, with_answers, with_answers})};
  const policy::StatePointer state = policy::make_state(config);
  Instant now = 1000 * kSecond;
  std::vector<policy::SendLock> grants;
  scheduler::Wake wake;
  const auto happens = [&](const policy::Event& event) {
    now += kSecond;
    const policy::Actions actions = policy::step(*state, event, now);
    for (const policy::Action& action : actions) {
      if (const auto* lock = std::get_if<policy::SendLock>(&action)) grants.push_back(*lock);
    }
    scheduler::TraceEvent traced{now, event, with_answers ? actions : policy::Actions{}};
    const scheduler::Wake then = policy::next_deadline(*state);
    if (with_answers && std::exchange(wake, then) != then) traced.wake = then;
    lines.push_back(scheduler::encode_trace(traced));
  };
  const policy::Memory none{12 * kGiB, 0, 0};
  const policy::Memory all{12 * kGiB, 12 * kGiB, 0};
  happens(policy::GpuAppeared{0, 16 * kGiB});
  happens(policy::HostMemory{100 * kGiB});
  for (const ClientId client : {1, 2}) {
    lines.push_back(scheduler::encode_trace(scheduler::TraceNames{client, "job", 7, client, "ann's", "Stand-in, GPU-1"}));
    happens(policy::ClientJoined{client, 0, client, 0, none, true, false, false});
    happens(policy::LockRequested{client});
  }
  happens(policy::SwapProgressed{1, false, true, false, grants.at(0).grant, 12 * kGiB, kSecond, all});
  happens(policy::LockReleased{1, grants.at(0).grant, all, true});
  happens(policy::Tick{});
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class File {
 public:
  explicit File(const std::string& text) : path_(testing::TempDir() + "nvshare-replay-" + std::to_string(getpid())) {
    std::ofstream(path_, std::ios::trunc) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<Replayed> replayed(const std::string& text) { return replay(File(text).path()); }

// The line with that word, and what it has behind it changed.
std::vector<std::string> altered(std::vector<std::string> lines, const std::string& word, const std::string& from, const std::string& to,
                                 size_t* line) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t at = lines[i].find(word);
    const size_t value = at == std::string::npos ? at : lines[i].find(from, at);
    if (value == std::string::npos) continue;
    lines[i].replace(value, from.size(), to);
    *line = i + 1;
    return lines;
  }
  ADD_FAILURE() << word << " is in no line";
  return lines;
}

TEST(Answers, OfTheSameBuildAreTheSame) {
  const auto lines = recorded();
  const auto done = replayed(joined(lines));
  ASSERT_TRUE(done) << done.error().text;
  EXPECT_FALSE(done->answers.difference()) << done->answers.difference()->line;
  EXPECT_EQ(done->answers.events(), 9u);
  EXPECT_EQ(done->answers.compared(), 9u);
  EXPECT_GE(done->answers.actions(), 6u);
  EXPECT_EQ(done->answers.length(), 8 * kSecond);
  EXPECT_EQ(done->answers.releases(), std::set<std::string>{"1.2.3"});
  EXPECT_EQ(done->incomplete, 0u);
}

TEST(Answers, AnotherTimeToBeWokenIsFound) {
  size_t line = 0;
  const auto lines = altered(recorded(), R"("wake":)", R"("wake":)", R"("wake":1)", &line);
  const auto done = replayed(joined(lines));
  ASSERT_TRUE(done) << done.error().text;
  ASSERT_TRUE(done->answers.difference());
  const Difference& difference = *done->answers.difference();
  EXPECT_EQ(difference.line, line);
  EXPECT_EQ(scheduler::encode_answers(difference.recorded), scheduler::encode_answers(difference.answered));
  ASSERT_TRUE(difference.wake_answered);
  EXPECT_NE(difference.wake_recorded, difference.wake_answered);
  // Recordings of 0.2.0 and of schedulers that did not record it say nothing of it.
  auto unsaid = altered(lines, R"("wakes":true)", R"("wakes":true)", R"("wakes":false)", &line);
  const auto same = replayed(joined(unsaid));
  ASSERT_TRUE(same) << same.error().text;
  EXPECT_FALSE(same->answers.difference());
}

TEST(Answers, OneAlteredActionIsFoundWithItsClientsAsTheyStoodBefore) {
  size_t line = 0;
  const auto lines = altered(recorded(), R"("action":"SendLock")", R"("client":2)", R"("client":1)", &line);
  const auto done = replayed(joined(lines));
  ASSERT_TRUE(done) << done.error().text;
  ASSERT_TRUE(done->answers.difference());
  const Difference& difference = *done->answers.difference();
  EXPECT_EQ(difference.line, line);
  EXPECT_EQ(difference.now, 1000 * kSecond + difference.into + kSecond);
  ASSERT_TRUE(std::holds_alternative<policy::LockReleased>(difference.event));
  EXPECT_EQ(difference.clients, (std::set<ClientId>{1, 2}));
  EXPECT_EQ(difference.recorded.size(), difference.answered.size());
  ASSERT_EQ(done->before.size(), 2u);
  EXPECT_EQ(done->before[0].state, policy::ClientState::kRunning) << "as it gives the GPU up";
  EXPECT_EQ(done->before[1].state, policy::ClientState::kWaiting);
  EXPECT_EQ(done->answers.names().at(2).program, "job");
}

TEST(Answers, OneThatIsMissingOneTooManyAndAnotherOrderAreFound) {
  const auto whole = recorded();
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto decoded = scheduler::decode_trace(whole[i]);
    ASSERT_TRUE(decoded);
    const auto* traced = std::get_if<scheduler::TraceEvent>(&*decoded);
    if (traced == nullptr) continue;
    const auto is_found = [&](const scheduler::TraceEvent& event) {
      auto lines = whole;
      lines[i] = scheduler::encode_trace(event);
      const auto done = replayed(joined(lines));
      return done && done->answers.difference() && done->answers.difference()->line == i + 1;
    };
    scheduler::TraceEvent more = *traced;
    more.answers.push_back(policy::SendKeep{1, 1});
    EXPECT_TRUE(is_found(more)) << whole[i];
    if (traced->answers.empty()) continue;
    scheduler::TraceEvent less = *traced;
    less.answers.pop_back();
    EXPECT_TRUE(is_found(less)) << whole[i];
    scheduler::TraceEvent turned = *traced;
    std::swap(turned.answers.front(), turned.answers.back());
    if (turned.answers.size() > 1) {
      EXPECT_TRUE(is_found(turned)) << whole[i];
    }
  }
}

TEST(Answers, OtherSettingsGiveOthers) {
  policy::Config config;
  config.memory_reserve_percent = 3;
  size_t line = 0;
  const auto done = replayed(joined(altered(recorded(config), "memory_reserve_percent", ":3", ":4", &line)));
  ASSERT_TRUE(done) << done.error().text;
  EXPECT_EQ(line, 1u);
  ASSERT_TRUE(done->answers.difference());
  EXPECT_TRUE(std::holds_alternative<policy::ClientJoined>(done->answers.difference()->event)) << "the first that is told its ceiling";
  EXPECT_TRUE(done->before.empty()) << "it joins with that event";
}

TEST(Answers, ThatWereNotRecordedAreNotCompared) {
  const auto old = recorded({}, false);
  const auto done = replayed(joined(old));
  ASSERT_TRUE(done) << done.error().text;
  EXPECT_EQ(done->answers.events(), 9u);
  EXPECT_EQ(done->answers.compared(), 0u);
  EXPECT_FALSE(done->answers.difference());

  const auto both = replayed(joined(old) + joined(recorded()));
  ASSERT_TRUE(both) << both.error().text;
  EXPECT_EQ(both->answers.events(), 18u);
  EXPECT_EQ(both->answers.compared(), 9u);
  EXPECT_EQ(both->answers.schedulers(), 2u);
  EXPECT_EQ(both->answers.length(), 16 * kSecond);
  EXPECT_FALSE(both->answers.difference());
}

TEST(Answers, AFileWhoseSchedulerWasKilledIsReadAsFarAsItGoes) {
  const std::string whole = joined(recorded());
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  const std::string cut = whole.substr(0, last + 10);
  const auto done = replayed(cut);
  ASSERT_TRUE(done) << done.error().text;
  EXPECT_EQ(done->incomplete, 1u);
  EXPECT_EQ(done->answers.events(), 8u);
  for (const bool is_former : {false, true}) {  // a scheduler up to 0.2 went on in the same line
    const auto followed = replayed(is_former ? cut + joined(recorded({}, false)) : cut + "\n" + whole);
    ASSERT_TRUE(followed) << followed.error().text;
    EXPECT_EQ(followed->incomplete, 1u);
    EXPECT_EQ(followed->answers.events(), 17u);
    EXPECT_EQ(followed->answers.schedulers(), 2u);
    EXPECT_EQ(followed->answers.compared(), is_former ? 8u : 17u);
    EXPECT_FALSE(followed->answers.difference());
  }
}

TEST(Answers, WhatIsNoRecordingIsRefusedWithItsLine) {
  auto lines = recorded();
  const auto refusal = [](const std::string& text) {
    const auto done = replayed(text);
    return done ? std::string("replayed") : std::string(done.error().text);
  };
  lines[3] = lines[3].substr(0, 20);
  EXPECT_EQ(refusal(joined(lines)).find("line 4: "), 0u) << refusal(joined(lines));
  EXPECT_NE(refusal(joined(lines)).find("accepted is what nvshare-scheduler --trace wrote"), std::string::npos);
  EXPECT_EQ(refusal("nonsense").find("line 1: "), 0u);
  EXPECT_NE(refusal(lines[1]).find("line 1: an event comes before the settings"), std::string::npos) << refusal(lines[1]);
  const std::string remembered = scheduler::encode_trace(scheduler::TraceStart{"1.2.3", std::nullopt});
  EXPECT_NE(refusal(remembered + "\n").find("not a recording of events"), std::string::npos) << refusal(remembered);
  const auto absent = replay("/nonexistent/recording");
  ASSERT_FALSE(absent);
  EXPECT_NE(std::string(absent.error().text).find("nvshare-scheduler --trace FILE makes a recording"), std::string::npos);
  EXPECT_FALSE(replay("/")) << "a folder";
}

// A recording may be somebody else's: the policy takes the figures of its events as they are.
TEST(Answers, WhatNoSchedulerCanHaveWrittenIsRefusedWithItsLine) {
  const auto lines = recorded();
  const auto refusal = [&lines](size_t line, const std::string& what, const std::string& instead) {
    auto changed = lines;
    const size_t at = changed[line].find(what);
    EXPECT_NE(at, std::string::npos) << changed[line];
    if (at != std::string::npos) changed[line].replace(at, what.size(), instead);
    const auto done = replayed(joined(changed));
    return done ? std::string("replayed") : std::string(done.error().text);
  };
  EXPECT_EQ(refusal(1, R"("total":17179869184)", R"("total":17179869183)").substr(0, 4), "repl") << "that is possible";
  EXPECT_EQ(refusal(1, R"("total":17179869184)", R"("total":-1)").find("line 2: 'total' cannot be -1; accepted is"), 0u);
  EXPECT_EQ(refusal(1, R"("total":17179869184)", R"("total":9223372036854775807)").find("line 2: 'total'"), 0u);
  EXPECT_EQ(refusal(1, R"("now":1001000000000)", R"("now":-9223372036854775808)").find("line 2: 'now'"), 0u);
  EXPECT_EQ(refusal(2, R"("available":107374182400)", R"("available":4611686018427387904)").find("line 3: 'available'"), 0u);
  EXPECT_EQ(refusal(0, R"("watched_grace":60000000000)", R"("watched_grace":-5)").find("line 1: 'watched_grace'"), 0u);
  EXPECT_EQ(refusal(0, R"("switch_time_multiplier":5)", R"("switch_time_multiplier":4294967295)").find("line 1: 'switch_time_m"), 0u);
  EXPECT_EQ(refusal(4, R"("priority":0)", R"("priority":2147483647)").find("line 5: 'priority'"), 0u) << lines[4];
  EXPECT_EQ(refusal(2, R"("now":1002000000000)", R"("now":1000000000000)").find("line 3: the time goes back"), 0u);
  EXPECT_EQ(refusal(2, R"("now":1002000000000)", R"("now":1002000000000000000)").find("line 3: that is years after"), 0u);
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(refusal(2, R"("uses":[])", R"("uses":)" + deep).find("line 3: not a line of a trace: it nests more than 64"), 0u);
}

TEST(Answers, ALineWithoutAnEndIsNotReadToIt) {
  struct Endless : std::streambuf {
    int_type underflow() override {
      if (given_ >= int64_t{200} << 20) return traits_type::eof();
      given_ += sizeof text_;
      setg(text_, text_, text_ + sizeof text_);
      return traits_type::to_int_type(text_[0]);
    }
    Endless() { std::fill_n(text_, sizeof text_, ' '); }
    char text_[1 << 16];
    int64_t given_ = 0;
  } endless;
  std::istream stream(&endless);
  Recording recording(stream);
  EXPECT_FALSE(recording.next());
  EXPECT_LE(endless.given_, int64_t{70} << 20);
}

}  // namespace
}  // namespace nvshare::replay
