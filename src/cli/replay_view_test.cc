#include "cli/replay_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace nvshare::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A client that joins a GPU of 16 GiB and asks for it. `budget`: what the recording says that it got; 0: as it was.
std::string recording(bool with_answers, policy::Bytes budget = 0) {
  const policy::StatePointer state = policy::make_state({});
  std::string text =
      scheduler::encode_trace(scheduler::TraceStart{with_answers ? "0.3.0" : "0.2.0", policy::Config{}, with_answers}) + "\n";
  policy::Instant now = 0;
  for (const policy::Event& event :
       std::initializer_list<policy::Event>{policy::GpuAppeared{0, 16 * kGiB},
                                            policy::ClientJoined{4, 0, 9, 0, {kGiB, 0, 0}, true, false, false}, policy::LockRequested{4}}) {
    now += 1'500'000'000;
    policy::Actions actions = policy::step(*state, event, now);
    for (policy::Action& action : actions) {
      if (auto* lock = std::get_if<policy::SendLock>(&action); lock != nullptr && budget > 0) lock->budget = budget;
    }
    text += scheduler::encode_trace(scheduler::TraceNames{4, "job\x1b[2J", 77, 9, "ann's", "card"}) + "\n";
    text += scheduler::encode_trace(scheduler::TraceEvent{now, event, with_answers ? actions : policy::Actions{}}) + "\n";
  }
  return text;
}

replay::Replayed replayed(const std::string& text) {
  std::istringstream stream(text);
  replay::Recording lines(stream);
  replay::Replayed all;
  while (true) {
    const auto line = lines.next();
    if (!line || !*line) return all;
    const auto before = all.answers.events() > 0 ? all.answers.views({4}, 4'500'000'000) : std::vector<policy::ClientView>();
    if (const auto same = all.answers.add(**line); same && *same) continue;
    all.before = before;
    return all;
  }
}

TEST(ReplayView, SaysWhatIsTheSame) {
  const auto same = replayed(recording(true));
  EXPECT_EQ(exit_code_of(same), 0);
  const std::string text = replay_text(same, "file", "0.3.1");
  EXPECT_NE(text.find("file: 3 events over 3 s, recorded by release 0.3.0, replayed by release 0.3.1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("the same answers: "), std::string::npos) << text;
  const auto json = nlohmann::json::parse(replay_json(same, "file", "0.3.1"));
  EXPECT_EQ(json.at("answers"), "same");
  EXPECT_EQ(json.at("events"), 3);
  EXPECT_EQ(json.at("length_ns"), 3'000'000'000);
  EXPECT_FALSE(json.contains("difference"));
}

TEST(ReplayView, SaysWhatDiffersInWordsAndAsRecorded) {
  const auto differs = replayed(recording(true, 3 * kGiB));
  EXPECT_EQ(exit_code_of(differs), kExitAnswerDiffers);
  const std::string text = replay_text(differs, "file", "0.3.0");
  for (const char* part :
       {"line 7, at 4.500000000 s, 3.000000000 s after its scheduler's first event: the answers differ", "event       LockRequested",
        R"({"client":4,"event":"LockRequested","now":4500000000})", "recorded    client 4 has the GPU (grant 1) with a budget of 3 GiB",
        R"("budget":3221225472)", "this build  client 4 has the GPU (grant 1) with a budget of 1",
        "before it   client 4: job?[2J (pid 77) of tenant 9 'ann's', on card", "idle for 1.5 s; 1 GiB allocated, 0 B on the GPU"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const auto json = nlohmann::json::parse(replay_json(differs, "file", "0.3.0"));
  EXPECT_EQ(json.at("answers"), "differ");
  const auto& difference = json.at("difference");
  EXPECT_EQ(difference.at("line"), 7);
  EXPECT_EQ(difference.at("event").at("event"), "LockRequested");
  EXPECT_EQ(difference.at("recorded").at(0).at("budget"), 3 * kGiB);
  EXPECT_NE(difference.at("this_build").at(0).at("budget"), 3 * kGiB);
  EXPECT_EQ(difference.at("clients_before").at(0).at("state"), "idle");
}

TEST(ReplayView, SaysWhenThePolicyAskedToBeWoken) {
  std::string text = recording(true);
  text.replace(text.find(R"("answers":true)"), 14, R"("answers":true,"wakes":true)");
  text.replace(text.rfind("}\n"), 2, ",\"wake\":6500000000}\n");  // of the last event
  const auto differs = replayed(text);
  ASSERT_TRUE(differs.answers.difference());
  const std::string words = replay_text(differs, "file", "0.3.0");
  EXPECT_NE(words.find("  recorded    asks to be woken at 6.500000000 s\n  this build  asks to be woken "), std::string::npos) << words;
  const auto json = nlohmann::json::parse(replay_json(differs, "file", "0.3.0"));
  EXPECT_EQ(json.at("difference").at("wake_recorded"), 6'500'000'000);
  EXPECT_NE(json.at("difference").at("wake_this_build"), 6'500'000'000);
}

TEST(ReplayView, SaysThatThereIsNothingToCompare) {
  const auto old = replayed(recording(false));
  EXPECT_EQ(exit_code_of(old), kExitNoAnswers);
  const std::string text = replay_text(old, "file", "0.3.0");
  EXPECT_NE(text.find("recorded by release 0.2.0"), std::string::npos) << text;
  EXPECT_NE(text.find("there is nothing to compare: answers are recorded by nvshare-scheduler --trace from release 0.3.0 on"),
            std::string::npos)
      << text;
  EXPECT_EQ(nlohmann::json::parse(replay_json(old, "file", "0.3.0")).at("answers"), "not recorded");
  const auto none = replayed(recording(true).substr(0, recording(true).find('\n') + 1));
  EXPECT_EQ(exit_code_of(none), kExitNoAnswers);
  EXPECT_NE(replay_text(none, "file", "0.3.0").find("it has no events"), std::string::npos);
  const auto both = replayed(recording(false) + recording(true));
  EXPECT_EQ(exit_code_of(both), 0);
  EXPECT_NE(replay_text(both, "file", "0.3.0").find("3 events without recorded answers, from a scheduler before 0.3.0: not compared\n"),
            std::string::npos);
}

}  // namespace
}  // namespace nvshare::cli
