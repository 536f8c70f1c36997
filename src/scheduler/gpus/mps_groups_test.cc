#include "scheduler/gpus/mps_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "protocol/messages.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr uid_t kGroupsUser = 1000;
constexpr pid_t kDaemon = 77;

template <typename Kind>
std::vector<Kind> all_of(const MpsGroups::Actions& actions) {
  std::vector<Kind> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<Kind>(&action)) found.push_back(*one);
  }
  return found;
}
template <typename Kind>
bool has(const MpsGroups::Actions& actions) {
  return !all_of<Kind>(actions).empty();
}

// Plays the processes: what is started runs and answers, until it is told otherwise.
class MpsGroupsTest : public testing::Test {
 protected:
  // Deadlines up to `until`; all that was done.
  MpsGroups::Actions pass(int64_t until) {
    MpsGroups::Actions all;
    for (int steps = 0; steps < 10'000; ++steps) {
      const auto next = groups_.next_deadline();
      if (!next || *next > until) break;
      now_ = std::max(now_, *next);
      perform(groups_.deadline_reached(now_), all);
    }
    now_ = until;
    return all;
  }
  MpsGroups::Actions pass_for(int64_t time) { return pass(now_ + time); }
  // In five seconds.
  int looks_while_one_joins_again_and_again() {
    const int before = looks_;
    MpsGroups::Actions actions;
    for (int i = 0; i < 1000; ++i) {
      perform(groups_.joined(kGroupsUser, now_), actions);
      pass_for(5 * kSecond / 1000);
    }
    return looks_ - before;
  }
  MpsGroups::Actions ask(MpsGroups::Asker asker, uid_t user = kGroupsUser, const std::string& name = "") {
    MpsGroups::Actions all;
    perform(groups_.asked({user, name}, asker, now_), all);
    return all;
  }
  MpsGroups::Actions end(const char* how = "was ended by signal 9") {
    MpsGroups::Actions all;
    perform(groups_.ended({kGroupsUser, ""}, how, now_), all);
    return all;
  }
  void perform(const MpsGroups::Actions& actions, MpsGroups::Actions& all) {
    for (const auto& action : actions) {
      all.push_back(action);
      if (const auto* start = std::get_if<MpsGroups::Start>(&action)) {
        ++starts_;
        if (cannot_start_.empty()) {
          perform(groups_.started(start->group, kDaemon, now_), all);
        } else {
          perform(groups_.not_started(start->group, cannot_start_, now_), all);
        }
      }
      if (const auto* look = std::get_if<MpsGroups::Look>(&action)) {
        ++looks_;
        const bool all_have_them = !only_ || *only_ == look->group;
        perform(groups_.looked(look->group, {answers_, {5}, all_have_them ? programs_ : std::set<pid_t>()}, now_), all);
      }
      if (const auto* quit = std::get_if<MpsGroups::Quit>(&action); quit != nullptr && obeys_) {
        perform(groups_.ended(quit->group, "has ended with exit status 0", now_), all);
      }
      if (const auto* kill = std::get_if<MpsGroups::Kill>(&action)) {
        perform(groups_.ended(kill->group, "was ended by signal 9", now_), all);
      }
    }
  }
  protocol::admin::MpsReport report() { return groups_.report().at(0); }

  MpsGroups groups_;
  int64_t now_ = kSecond;
  int starts_ = 0;
  int looks_ = 0;
  bool answers_ = true;
  bool obeys_ = true;
  std::string cannot_start_;
  std::set<pid_t> programs_;
  std::optional<TrustGroup> only_;  // whose daemon alone has these programs
};

TEST_F(MpsGroupsTest, TheFirstWhoAsksStartsADaemonAndIsAnsweredWhenItServes) {
  EXPECT_FALSE(has<MpsGroups::Answer>(ask(1)));
  EXPECT_FALSE(has<MpsGroups::Answer>(ask(2))) << "waits for the same";
  EXPECT_EQ(starts_, 1);
  const auto answers = all_of<MpsGroups::Answer>(pass_for(kSecond));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].refusal, "");
  const auto later = all_of<MpsGroups::Answer>(ask(3));
  ASSERT_EQ(later.size(), 1u) << "at once";
  EXPECT_EQ(later[0].refusal, "");
  EXPECT_EQ(starts_, 1);
  EXPECT_EQ(report().state, "serving");
  EXPECT_EQ(report().pid, kDaemon);
}

TEST_F(MpsGroupsTest, EachUserHasItsOwn) {
  ask(1, 1000);
  ask(2, 1001);
  EXPECT_EQ(starts_, 2);
  EXPECT_EQ(groups_.report().size(), 2u);
}

TEST_F(MpsGroupsTest, EachGroupOfAUserHasItsOwn) {
  ask(1);
  ask(2, kGroupsUser, "a");
  ask(3, kGroupsUser, "b");
  ask(4, 1001, "a");
  ask(5, kGroupsUser, "a");
  EXPECT_EQ(starts_, 4);
  programs_ = {501};
  std::map<TrustGroup, std::set<uint64_t>> numbers;
  std::set<uint64_t> all;
  for (const auto& seen : all_of<MpsGroups::Attached>(pass_for(30 * kSecond))) {
    numbers[seen.group].insert(seen.number);
    all.insert(seen.number);
  }
  EXPECT_EQ(numbers.size(), 4u);
  EXPECT_EQ(all.size(), 4u) << "each has one of its own, and keeps it";
  EXPECT_FALSE(all.contains(0));
  std::set<std::pair<uint32_t, std::string>> reported;
  for (const auto& mps : groups_.report()) reported.emplace(mps.user, mps.group);
  EXPECT_EQ(reported, (std::set<std::pair<uint32_t, std::string>>{{kGroupsUser, ""}, {kGroupsUser, "a"}, {kGroupsUser, "b"}, {1001, "a"}}));
}

// Nobody starts daemons without end by names that come once; those who do take no place from others.
TEST_F(MpsGroupsTest, GroupsOfAUserAreBounded) {
  for (size_t i = 0; i < MpsGroups::kNamedMost; ++i) ask(i, kGroupsUser, "job" + std::to_string(i));
  const auto answers = all_of<MpsGroups::Answer>(ask(99, kGroupsUser, "more"));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].refusal.find("8 trust groups of user 1000"), std::string::npos) << answers[0].refusal;
  EXPECT_LT(answers[0].refusal.size(), sizeof protocol::MpsGroup::reason);
  EXPECT_EQ(groups_.report().size(), MpsGroups::kNamedMost) << "nothing is kept of the one that was refused";
  ask(100);  // the one without a name has its place
  ask(101, 1001, "more");
  EXPECT_EQ(starts_, static_cast<int>(MpsGroups::kNamedMost) + 2);
  for (uid_t user = 2000; user < 2000 + MpsGroups::kUsersMost - 2; ++user) ask(user, user);
  EXPECT_EQ(starts_, static_cast<int>(MpsGroups::kNamedMost + MpsGroups::kUsersMost)) << "others' places are counted by user";
}

TEST_F(MpsGroupsTest, AGroupWithANameIsForgottenOnceItsDaemonHasEnded) {
  for (size_t i = 0; i < MpsGroups::kNamedMost; ++i) ask(i, kGroupsUser, "job" + std::to_string(i));
  only_ = TrustGroup{kGroupsUser, "job3"};
  programs_ = {501};
  std::set<TrustGroup> forgotten;
  for (const auto& one : all_of<MpsGroups::Forget>(pass_for(MpsGroups::kIdle + 20 * kSecond))) forgotten.insert(one.group);
  EXPECT_EQ(forgotten.size(), MpsGroups::kNamedMost - 1);
  EXPECT_FALSE(forgotten.contains(*only_)) << "a program uses it";
  ASSERT_EQ(groups_.report().size(), 1u);
  EXPECT_EQ(report().group, "job3");
  const int before = starts_;
  ask(99, kGroupsUser, "more");
  EXPECT_EQ(starts_, before + 1);
}

// One whose daemon does not start holds its place as long as it is tried again.
TEST_F(MpsGroupsTest, AGroupThatFailsIsForgottenWhenNobodyWantsItAnyMore) {
  cannot_start_ = "no";
  ask(1, kGroupsUser, "a");
  EXPECT_FALSE(has<MpsGroups::Forget>(pass_for(MpsGroups::kIdle - 60 * kSecond)));
  EXPECT_EQ(report().group, "a");
  EXPECT_TRUE(has<MpsGroups::Forget>(pass_for(2 * MpsGroups::kIdle)));
  EXPECT_TRUE(groups_.report().empty());
  EXPECT_EQ(groups_.next_deadline(), std::nullopt);
}

// Stopped for longer than a daemon is wanted, it found a deadline that had passed, did nothing about it, and found it again at once.
TEST_F(MpsGroupsTest, ADeadlineThatIsSeenLateIsNotSeenForEver) {
  cannot_start_ = "no";
  ask(1);
  now_ += 2 * MpsGroups::kIdle;
  MpsGroups::Actions actions;
  perform(groups_.deadline_reached(now_), actions);
  const auto next = groups_.next_deadline();
  EXPECT_TRUE(!next || *next > now_);
}

TEST_F(MpsGroupsTest, WhoJoinsIsLookedForAtEachOfItsUsersDaemons) {
  ask(1);
  ask(2, kGroupsUser, "a");
  ask(3, 1001);
  pass_for(65 * kSecond);  // between two looks at all
  MpsGroups::Actions actions;
  perform(groups_.joined(kGroupsUser, now_), actions);
  std::set<TrustGroup> looked;
  for (const auto& look : all_of<MpsGroups::Look>(pass_for(kSecond / 10))) looked.insert(look.group);
  EXPECT_EQ(looked, (std::set<TrustGroup>{{kGroupsUser, ""}, {kGroupsUser, "a"}}));
}

TEST_F(MpsGroupsTest, UsersAreBounded) {
  for (uid_t user = 1; user <= MpsGroups::kUsersMost; ++user) ask(user, user);
  const auto answers = all_of<MpsGroups::Answer>(ask(99, 5000));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].refusal.find("64 users"), std::string::npos) << answers[0].refusal;
}

// They counted for good: the 65th user of a machine never got a daemon.
TEST_F(MpsGroupsTest, UsersWhoseDaemonHasEndedMakeRoom) {
  for (uid_t user = 1; user <= MpsGroups::kUsersMost; ++user) ask(user, user);
  pass_for(kSecond);
  ask(99, 1);  // and again, last
  pass_for(MpsGroups::kIdle + 60 * kSecond);
  ask(100, 5000);
  const auto answers = all_of<MpsGroups::Answer>(pass_for(kSecond));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].refusal, "");
  EXPECT_EQ(groups_.report().size(), MpsGroups::kUsersMost);
  const int starts = starts_;
  ask(101, 1);
  EXPECT_EQ(starts_, starts + 1) << "its own place went to nobody";
}

TEST_F(MpsGroupsTest, WhoJoinsAgainAndAgainIsNotLookedAtEachTime) {
  ask(1);
  pass_for(60 * kSecond);
  const int looks = looks_while_one_joins_again_and_again();
  EXPECT_LE(looks, 60) << "each starts two processes";
  EXPECT_GE(looks, 10);
}

// More groups are no more looks.
TEST_F(MpsGroupsTest, LooksAtTheDaemonsOfOneUserAreBoundedTogether) {
  for (size_t i = 0; i < MpsGroups::kNamedMost; ++i) ask(i, kGroupsUser, "job" + std::to_string(i));
  pass_for(60 * kSecond);
  const int looks = looks_while_one_joins_again_and_again();
  EXPECT_LE(looks, 70);
  EXPECT_GE(looks, static_cast<int>(MpsGroups::kNamedMost));
}

TEST_F(MpsGroupsTest, ADaemonThatEndsIsStartedAgainMoreAndMoreRarely) {
  ask(1);
  pass_for(kSecond);
  std::vector<int64_t> gaps;
  for (int i = 0; i < 12; ++i) {
    const int before = starts_;
    const int64_t since = now_;
    EXPECT_TRUE(has<MpsGroups::Note>(end()));
    while (starts_ == before && now_ - since < 100 * kSecond) pass_for(kSecond / 20);
    gaps.push_back(now_ - since);
  }
  EXPECT_LE(gaps[0], MpsGroups::kBackoffMin + kSecond / 10);
  EXPECT_GE(gaps[11], MpsGroups::kBackoffMax);
  EXPECT_LE(gaps[11], MpsGroups::kBackoffMax + kSecond);
  for (size_t i = 1; i < gaps.size(); ++i) EXPECT_GE(gaps[i] + kSecond / 10, gaps[i - 1]);
}

TEST_F(MpsGroupsTest, OneThatServedWellIsStartedAgainSoon) {
  ask(1);
  pass_for(kSecond);
  for (int i = 0; i < 4; ++i) {
    end();
    pass_for(10 * kSecond);
  }
  pass_for(2 * MpsGroups::kLooksWell);
  end();
  const int before = starts_;
  pass_for(MpsGroups::kBackoffMin);
  EXPECT_EQ(starts_, before + 1);
  EXPECT_EQ(report().restarts, 5u);
}

TEST_F(MpsGroupsTest, WhoAsksBetweenTwoStartsIsToldWhyNot) {
  cannot_start_ = "it could not run it: No such file";
  const auto answers = all_of<MpsGroups::Answer>(ask(1));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].refusal.find("No such file"), std::string::npos);
  const auto again = all_of<MpsGroups::Answer>(ask(2));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_NE(again[0].refusal.find("started again in 1 s"), std::string::npos) << again[0].refusal;
  EXPECT_EQ(report().trouble, cannot_start_);
}

TEST_F(MpsGroupsTest, OneThatNeverAnswersIsEndedAndItsAskersAreTold) {
  answers_ = false;
  ask(1);
  const auto actions = pass_for(MpsGroups::kStartPatience + kSecond);
  EXPECT_TRUE(has<MpsGroups::Kill>(actions));
  const auto answers = all_of<MpsGroups::Answer>(actions);
  ASSERT_FALSE(answers.empty());
  EXPECT_NE(answers[0].refusal, "");
}

TEST_F(MpsGroupsTest, OneThatAnswersNoMoreIsEnded) {
  ask(1);
  pass_for(kSecond);
  answers_ = false;
  EXPECT_TRUE(has<MpsGroups::Kill>(pass_for(20 * kSecond)));
}

TEST_F(MpsGroupsTest, WhoseProgramsAreAttachedIsSeenSoonAfterTheyJoin) {
  ask(1);
  pass_for(60 * kSecond);
  const int before = looks_;
  MpsGroups::Actions actions;
  perform(groups_.joined(kGroupsUser, now_), actions);
  programs_ = {501};  // a moment later
  actions = pass_for(kSecond / 2);
  EXPECT_GE(looks_, before + 2);
  const auto seen = all_of<MpsGroups::Attached>(actions);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().programs, std::set<pid_t>{501});
  EXPECT_EQ(report().programs, 1u);
  const int after = looks_;
  pass_for(60 * kSecond);
  EXPECT_LE(looks_, after + 10) << "and then rarely";
}

TEST_F(MpsGroupsTest, ThoseThatWereAttachedAreNamedWhenItEnds) {
  ask(1);
  programs_ = {501, 502};
  pass_for(kSecond);
  const auto actions = end();
  bool named = false;
  for (const auto& note : all_of<MpsGroups::Note>(actions)) named |= note.text.find("501, 502") != std::string::npos;
  EXPECT_TRUE(named);
  ASSERT_TRUE(has<MpsGroups::Attached>(actions));
  EXPECT_TRUE(all_of<MpsGroups::Attached>(actions).back().programs.empty());
}

TEST_F(MpsGroupsTest, AFullServerTakesNoMore) {
  ask(1);
  for (pid_t pid = 1; pid <= static_cast<pid_t>(MpsGroups::kProgramsMost); ++pid) programs_.insert(pid);
  pass_for(kSecond);
  const auto answers = all_of<MpsGroups::Answer>(ask(2));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].refusal.find("room for 48"), std::string::npos) << answers[0].refusal;
}

TEST_F(MpsGroupsTest, AnIdleOneIsEndedAndABusyOneIsNot) {
  ask(1);
  programs_ = {501};
  EXPECT_FALSE(has<MpsGroups::Quit>(pass_for(3 * MpsGroups::kIdle)));
  programs_.clear();
  EXPECT_FALSE(has<MpsGroups::Quit>(pass_for(MpsGroups::kIdle / 2)));
  EXPECT_TRUE(has<MpsGroups::Quit>(pass_for(MpsGroups::kIdle)));
  EXPECT_EQ(report().state, "down");
  const int before = starts_;
  pass_for(10 * MpsGroups::kIdle);
  EXPECT_EQ(starts_, before) << "nobody wants it";
  ask(2);
  EXPECT_EQ(starts_, before + 1);
}

TEST_F(MpsGroupsTest, OneThatDoesNotQuitIsKilledAndWhoAsksMeanwhileGetsANewOne) {
  ask(1);
  pass_for(kSecond);
  obeys_ = false;
  while (report().state != "ending") pass_for(kSecond);
  EXPECT_FALSE(has<MpsGroups::Answer>(ask(2)));
  const auto actions = pass_for(MpsGroups::kEndPatience + kSecond);
  EXPECT_TRUE(has<MpsGroups::Kill>(actions));
  ASSERT_TRUE(has<MpsGroups::Answer>(actions));
  EXPECT_EQ(all_of<MpsGroups::Answer>(actions)[0].refusal, "");
  EXPECT_EQ(report().state, "serving");
}

TEST_F(MpsGroupsTest, AnAdoptedOneServesOnAndAnUnwantedOneOnlyWhileItIsUsed) {
  groups_.adopted({kGroupsUser, ""}, kDaemon, true, now_);
  programs_ = {501};
  pass_for(kSecond);
  EXPECT_EQ(report().state, "serving");
  EXPECT_EQ(report().programs, 1u);
  EXPECT_EQ(starts_, 0);
  groups_.adopted({1001, ""}, kDaemon, false, now_);
  programs_.clear();
  EXPECT_TRUE(has<MpsGroups::Quit>(pass_for(kSecond))) << "the setting is off now";
}

}  // namespace
}  // namespace nvshare::scheduler
