// What the schedulers of simulated runs record, replayed: the policy decides by what is in its events alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <variant>

#include "folder.h"
#include "repeats.h"
#include "replay/answers.h"
#include "run.h"
#include "scheduler/log.h"

namespace nvshare::simulation {
namespace {

using scheduler::TraceEvent;

class Recordings : public testing::Test {
 protected:
  Recordings() {
    scheduler::set_log_level("off");
    options_.folder = folder_.path();
    options_.recording = file_;
  }

  // Plays that run, whose schedulers add to the file.
  void record(uint64_t seed) { ASSERT_EQ(simulation::Run(draw_plan(seed), options_).play(), "") << "seed " << seed; }

  replay::Answers replayed() const {
    Result<replay::Replayed> result = replay::replay(file_);
    EXPECT_TRUE(result) << (result ? "" : result.error().text);
    return result ? std::move(result->answers) : replay::Answers();
  }

  // Changes the answers to the first event that has a grant among them, from the line `from` on. Gives its line, 0: there is none.
  template <typename Change>
  size_t change_answers(size_t from, Change change) {
    std::ifstream file(file_);
    std::string text, changed;
    size_t at = 0, number = 0;
    while (std::getline(file, text)) {
      ++number;
      if (number >= from && at == 0 && text.find("SendLock") != std::string::npos) {
        auto event = std::get<TraceEvent>(*scheduler::decode_trace(text));
        change(event.answers);
        text = scheduler::encode_trace(event);
        at = number;
      }
      changed += text + "\n";
    }
    std::ofstream(file_, std::ios::trunc) << changed;
    return at;
  }

  // As this build would have recorded it.
  void expect_difference_at(size_t line) const {
    ASSERT_GT(line, 0U);
    const replay::Answers answers = replayed();
    ASSERT_TRUE(answers.difference());
    EXPECT_EQ(answers.difference()->line, line);
  }

  const Folder folder_;
  const std::string file_ = folder_.path() + "/recording";
  simulation::Run::Options options_;
};

TEST_F(Recordings, OfSimulatedRunsAreAnsweredTheSame) {
  constexpr uint64_t kRuns = repeats(40, 8);
  for (uint64_t seed = 1; seed <= kRuns; ++seed) record(seed);
  const replay::Answers answers = replayed();
  EXPECT_FALSE(answers.difference()) << "line " << answers.difference()->line;
  std::printf("%llu events of %llu schedulers, %llu answers the same\n", static_cast<unsigned long long>(answers.events()),
              static_cast<unsigned long long>(answers.schedulers()), static_cast<unsigned long long>(answers.actions()));
  EXPECT_GT(answers.schedulers(), kRuns) << "some are killed, and come back";
  EXPECT_EQ(answers.compared(), answers.events());
  EXPECT_GT(answers.compared(), 100 * kRuns);
  EXPECT_GT(answers.actions(), 50 * kRuns);
}

TEST_F(Recordings, AGrantOfMoreThanIsAnsweredIsFound) {
  record(1);
  const size_t line = change_answers(100, [](policy::Actions& answers) {
    for (policy::Action& answer : answers) {
      if (auto* lock = std::get_if<policy::SendLock>(&answer)) return static_cast<void>(++lock->budget);
    }
  });
  expect_difference_at(line);
}

TEST_F(Recordings, AnAnswerThatIsLeftOutIsFound) {
  record(1);
  expect_difference_at(change_answers(100, [](policy::Actions& answers) { answers.pop_back(); }));
}

}  // namespace
}  // namespace nvshare::simulation
