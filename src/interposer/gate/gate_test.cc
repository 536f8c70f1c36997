#include "interposer/gate/gate.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace nvshare::interposer {
namespace {

Gate& gate = program_gate;

constexpr uint32_t kBit = 1;

// Threads that submit all the time, as wrappers do, and a count of submissions that landed while the gate was closed and quiet.
class Submitters {
 public:
  explicit Submitters(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Submitters() { stop(); }
  void stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::atomic<bool> quiet{false};
  std::atomic<uint64_t> landed{0};
  std::atomic<uint64_t> violations{0};

 private:
  void run() {
    while (!stop_) {
      Mark* mark = Gate::mark();
      uint32_t flags = gate.enter(mark);
      if ((flags & Gate::kClosedMask) != 0) {
        gate.leave(mark);
        gate.begin_waiting();
        gate.wait_change(flags, 1'000'000);
        gate.end_waiting();
        continue;
      }
      if (quiet.load(std::memory_order_relaxed)) violations.fetch_add(1, std::memory_order_relaxed);
      uint64_t count = landed.fetch_add(1, std::memory_order_relaxed);
      gate.leave(mark);
      // Give the processor up outside the gate now and then: else, on few cores, the closer mostly waits for threads that were preempted
      // inside, and the rounds take milliseconds each.
      if (count % 4 == 0) std::this_thread::yield();
    }
  }
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(Gate, NothingLandsAfterTheDrain) {
  gate.initialise();
  Submitters submitters(8);
  constexpr int kRounds = 100'000;
  for (int round = 0; round < kRounds; ++round) {
    gate.set(kBit);
    ASSERT_TRUE(gate.quiesce(now_ns() + 60'000'000'000)) << "round " << round;
    submitters.quiet.store(true, std::memory_order_relaxed);
    if (round % 64 == 0) std::this_thread::yield();
    submitters.quiet.store(false, std::memory_order_relaxed);
    gate.clear(kBit);
  }
  uint64_t landed = submitters.landed;
  while (submitters.landed < landed + 100) std::this_thread::yield();  // the gate is open again, not stuck
  submitters.stop();
  EXPECT_EQ(submitters.violations, 0u);
}

// Whether anybody watches or not, and however deep.
TEST(Gate, CountsWhoComesIn) {
  Mark* mark = Gate::mark();
  const uint64_t before = *gate.entries(true);
  gate.enter(mark);
  gate.enter(mark);
  EXPECT_EQ(mark->depth(), 2u);
  gate.leave(mark);
  gate.leave(mark);
  EXPECT_EQ(mark->depth(), 0u);
  EXPECT_FALSE(gate.busy());
  EXPECT_EQ(*gate.entries(true), before + 2);
  std::thread([] {
    Mark* other = Gate::mark();
    gate.enter(other);  // and ends inside
  }).join();
  EXPECT_EQ(*gate.entries(true), before + 3) << "a thread that has ended counts";
  EXPECT_FALSE(gate.busy());
}

// Whoever asks often is not to look at very many threads' marks.
TEST(Gate, CountsOfManyThreadsOnlyIfThatIsWorthIt) {
  EXPECT_TRUE(gate.entries(false));
  std::atomic<int> ready{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&] {
      Gate::mark();
      ++ready;
      while (!done) std::this_thread::yield();
    });
  }
  while (ready < 40) std::this_thread::yield();
  EXPECT_FALSE(gate.entries(false));
  EXPECT_TRUE(gate.entries(true));
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// Without the closer's wait the same measurement must find submissions that land too late; otherwise the test above proves nothing.
TEST(Gate, TheMeasurementSeesAViolation) {
  gate.initialise();
  Submitters submitters(4);
  for (int round = 0; round < 1'000'000 && submitters.violations == 0; ++round) {
    submitters.quiet.store(true, std::memory_order_relaxed);
    std::this_thread::yield();
    submitters.quiet.store(false, std::memory_order_relaxed);
  }
  submitters.stop();
  EXPECT_GT(submitters.violations, 0u);
}

TEST(Gate, QuiesceGivesUpAtItsDeadline) {
  gate.initialise();
  Mark* mark = Gate::mark();
  gate.enter(mark);
  gate.set(kBit);
  EXPECT_FALSE(gate.quiesce(now_ns() + 20'000'000));
  gate.leave(mark);
  EXPECT_TRUE(gate.quiesce(now_ns() + 20'000'000));
  gate.clear(kBit);
}

TEST(Gate, MarksOfEndedThreadsAreReused) {
  gate.initialise();
  Mark* first = nullptr;
  std::thread([&] { first = Gate::mark(); }).join();
  Mark* second = nullptr;
  std::thread([&] { second = Gate::mark(); }).join();
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(first, second);
}

// Whoever opens the gate wakes the thread that waits for a message as well, however the two meet; a message alone wakes it, too, and is not
// taken.
TEST(Gate, AThreadThatWaitsForNewsMissesNeitherTheNewsNorTheOpening) {
  gate.initialise();
  const int messages = eventfd(0, EFD_NONBLOCK);
  WakeSocket wake;
  ASSERT_TRUE(wake.make());
  constexpr int64_t kForever_ns = 60'000'000'000;
  std::atomic<int> round{0};
  std::atomic<int> passed{0};
  constexpr int kRounds = 2000;
  auto wait = [&] {
    for (int next = 1; next <= kRounds; ++next) {
      while (round.load() < next) std::this_thread::yield();
      for (uint32_t flags = gate.flags(); (flags & kBit) != 0; flags = gate.flags()) {
        gate.wait_change_or_message(flags, messages, wake, kForever_ns);
      }
      passed.fetch_add(1);
    }
  };
  std::thread waits(wait), waits_too(wait);  // one of them only sleeps
  const int64_t started = now_ns();
  for (int next = 1; next <= kRounds; ++next) {
    gate.set(kBit);
    round.store(next);
    if (next % 3 == 0) std::this_thread::yield();
    const uint64_t one = 1;
    if (next % 4 == 0) {
      EXPECT_EQ(write(messages, &one, sizeof one), static_cast<ssize_t>(sizeof one));
    }
    if (next % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gate.clear(kBit);
    while (passed.load() < 2 * next) std::this_thread::yield();
    uint64_t count = 0;
    EXPECT_EQ(read(messages, &count, sizeof count) > 0, next % 4 == 0);
  }
  waits.join();
  waits_too.join();
  EXPECT_LT(now_ns() - started, kForever_ns);
  // News alone: it goes to sleep again for the rest of its time, and is back after that.
  gate.set(kBit);
  const uint64_t one = 1;
  ASSERT_EQ(write(messages, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  const int64_t before = now_ns();
  gate.wait_change_or_message(gate.flags(), messages, wake, 5'000'000);
  EXPECT_GE(now_ns() - before, 4'000'000);
  // Descriptors that are none any more.
  gate.wait_change_or_message(gate.flags(), -1, wake, 1'000'000);
  close(messages);
  wake.reset();
  gate.wait_change_or_message(gate.flags(), messages, wake, 1'000'000);
  gate.clear(kBit);
}

}  // namespace
}  // namespace nvshare::interposer
