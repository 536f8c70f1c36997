// How long a thread is held, played with a GPU that does one submission of a stream after the other.
#include "interposer/gate/hold_patience.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace nvshare::interposer {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSec = 1000 * kMs;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr size_t kEventsMost = 15;  // under way, as a Ring has (pacer.h); each submission has one

// A thread that submits as fast as it can, and is held as a Ring holds it.
class HeldThread {
 public:
  explicit HeldThread(bool limited = false) : limited_(limited) {}

  void submit(int64_t takes_ns) { submit_to(0, takes_ns); }
  void submit_to(size_t stream, int64_t takes_ns) {
    int64_t& at = gpu_at_[stream];
    now_ += 10'000;
    works_.push_back(takes_ns);
    at = standing_ ? at : std::max(at, now_) + takes_ns;
    const int64_t end = standing_ ? kNever : at;
    const size_t under_way = events_.size() - ended_;
    if (under_way == kEventsMost) {
      events_.back() = {now_, end, events_.back().submissions + 1, 0};
    } else {
      events_.push_back({now_, end, 1, 0});
    }
    for (size_t i = ended_; i < events_.size(); ++i) events_.back().in_flight += events_[i].submissions;
    hold();
  }
  // From now on its work waits for what the thread does next, until go_on().
  void stand_still() { standing_ = true, works_.clear(); }
  void go_on() {
    standing_ = false;
    gpu_at_[0] = std::max(gpu_at_[0], now_);
    size_t event = events_.size();
    for (size_t left = works_.size(); left > 0 && event > 0; left -= std::min<size_t>(left, events_[event].submissions)) --event;
    size_t work = 0;
    for (; event < events_.size(); ++event) {
      for (uint32_t i = 0; i < events_[event].submissions && work < works_.size(); ++i) gpu_at_[0] += works_[work++];
      events_[event].end = gpu_at_[0];
    }
  }
  int64_t now() const { return now_; }
  uint32_t in_flight() const {
    uint32_t sum = 0;
    for (size_t i = ended_; i < events_.size(); ++i) sum += events_[i].submissions;
    return sum;
  }

 private:
  struct Event {
    int64_t recorded, end;
    uint32_t submissions, in_flight;
  };
  bool see_done(size_t number, bool in_hold) {
    for (bool with_former = false; ended_ <= number; with_former = true) {
      const Event& event = events_[ended_];
      if (event.end > now_) return false;
      ++ended_;
      last_end_ = now_;
      if (in_hold) patience_.ended({now_, event.recorded, event.submissions, event.in_flight, 0, with_former});
    }
    return true;
  }
  HoldPatience::Rest rest(size_t number) const {
    uint32_t ahead = 0;
    for (size_t i = ended_; i <= number; ++i) ahead += events_[i].submissions;
    return {ahead, events_[ended_].submissions, std::max(events_[ended_].recorded, last_end_)};
  }
  bool wait_for(size_t number) {
    if (see_done(number, false)) return true;
    patience_.begins(now_, limited_);
    for (;;) {
      if (now_ >= patience_.until_ns(1, rest(number))) return false;
      now_ += 100'000;
      if (see_done(number, true)) return true;
    }
  }
  void hold() {
    if (events_.size() < 2) return;
    const size_t number = events_.size() - 2;
    if (!wait_for(number)) return patience_.was_in_vain(now_, rest(number));
    patience_.was_enough();
    if (number > 0 && events_[number - 1].end <= events_[number].end) patience_.spaced(events_[number].end - events_[number - 1].end);
  }

  const bool limited_;
  int64_t now_ = kSec, gpu_at_[4] = {};  // of each stream
  bool standing_ = false;
  std::vector<int64_t> works_;  // submitted since it stood still
  std::vector<Event> events_;
  size_t ended_ = 0;
  int64_t last_end_ = 0;
  HoldPatience patience_;
};

// With nothing but 5 ms of patience such a thread had its whole rest of life in flight, and no drain ended.
TEST(HoldPatience, KeepsLittleInFlightHoweverLongTheWorkTakes) {
  for (const bool limited : {false, true}) {
    for (const int64_t takes : {kMs / 10, kMs, 10 * kMs, 60 * kMs, 200 * kMs, 700 * kMs, 2 * kSec, 3 * kSec}) {
      SCOPED_TRACE(std::to_string(takes / 1000) + " us" + (limited ? ", limited" : ""));
      HeldThread thread(limited);
      uint32_t most = 0;
      while (thread.now() < 40 * takes + 2 * kSec) {
        thread.submit(takes);
        most = std::max(most, thread.in_flight());
      }
      EXPECT_LE(thread.in_flight(), 3u);
      EXPECT_LE(most, 3 + takes / HoldPatience::kHold_ns);
    }
  }
}

TEST(HoldPatience, FollowsWorkThatGetsLonger) {
  HeldThread thread;
  while (thread.now() < 3 * kSec) thread.submit(2 * kMs);
  for (const int64_t takes : {150 * kMs, 600 * kMs, 20 * kMs, 2'500 * kMs}) {
    const int64_t until = thread.now() + 70 * kSec;
    uint32_t most = 0;
    while (thread.now() < until) {
      thread.submit(takes);
      most = std::max(most, thread.in_flight());
    }
    EXPECT_LE(thread.in_flight(), 3u) << takes;
    EXPECT_LE(most, 25u) << takes;
  }
}

// What ends at the same time, or nearly so, says little of how long the GPU takes.
TEST(HoldPatience, KeepsLittleInFlightOnSeveralStreams) {
  const std::vector<int64_t> programs[] = {{60, 60}, {60, 1}, {200, 20}, {200, 200}, {60, 60, 60}, {150, 30, 5, 30}, {250, 250, 250, 250}};
  for (const std::vector<int64_t>& takes : programs) {
    SCOPED_TRACE(std::to_string(takes.size()) + " streams, " + std::to_string(takes[0]) + " and " + std::to_string(takes[1]) + " ms");
    HeldThread thread;
    size_t stream = 0;
    uint32_t most = 0;
    while (thread.now() < 30 * kSec) {
      thread.submit_to(stream, takes[stream] * kMs);
      stream = (stream + 1) % takes.size();
      if (thread.now() > 10 * kSec) most = std::max(most, thread.in_flight());
    }
    EXPECT_LE(most, 15u);
  }
}

// With SIGSTOP, or a debugger. An hour for one submission made each later hold in vain last ten seconds, for good.
TEST(HoldPatience, TakesNoTimeInWhichTheProgramWasStoppedForTheGpus) {
  HoldPatience patience;
  const auto ends = [&](int64_t seen, int64_t recorded) { patience.ended({seen, recorded, 1, 2, 0, false}); };
  patience.begins(kSec, false);
  ends(kSec + kMs, kSec - kMs);
  ends(3'600 * kSec, kSec);
  patience.was_enough();
  int64_t now = 3'601 * kSec;
  for (int i = 0; i < 2; ++i) {
    patience.begins(now, false);
    const HoldPatience::Rest rest{1, 1, now};
    const int64_t until = patience.until_ns(1, rest);
    EXPECT_LE(until - now, i == 0 ? HoldPatience::kLongHoldMost_ns : HoldPatience::kHold_ns);
    now = until + kMs;
    patience.was_in_vain(now, rest);
  }
}

// A host function that waits for a lock, for example. Once a minute it might as well be long work.
TEST(HoldPatience, LetsAThreadGoOnWhoseWorkWaitsForIt) {
  for (const int64_t takes : {kMs, 50 * kMs}) {
    HeldThread thread;
    while (thread.now() < 5 * kSec) thread.submit(takes);
    int64_t most[] = {9 * kSec, kSec + kSec / 2};  // 5 ms each, after the first few
    for (const int64_t at_most : most) {
      thread.stand_still();
      const int64_t from = thread.now();
      for (int i = 0; i < 200; ++i) thread.submit(takes);
      EXPECT_LT(thread.now() - from, at_most);
      thread.go_on();
      do thread.submit(takes);
      while (thread.in_flight() > 3);
    }
  }
}

// Each few submissions are let go by the last of them. What a hold lasts must not become the reason why the next one lasts longer.
TEST(HoldPatience, TakesNoPauseOfItsOwnForTheGpusTime) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const int64_t takes : {kMs / 5, 2 * kMs, 8 * kMs}) {
    for (const int together : {3, 6, 20, 60}) {
      SCOPED_TRACE(std::to_string(together) + " of " + std::to_string(takes / 1000) + " us");
      HeldThread thread;
      while (thread.now() < 2 * kSec) thread.submit(takes);
      const int64_t from = thread.now();
      constexpr int kRounds = 300;
      for (int round = 0; round < kRounds; ++round) {
        thread.stand_still();
        for (int i = 0; i < together; ++i) thread.submit(takes + random() % (takes / 4));
        thread.go_on();
      }
      // Each but the first two of a round is held in vain: 20 ms at most, or as long as all of them take.
      EXPECT_LT((thread.now() - from) / kRounds, together * std::max(20 * kMs, 5 * takes));
    }
  }
}

}  // namespace
}  // namespace nvshare::interposer
