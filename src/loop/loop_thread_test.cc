// A loop with its thread: order, calls from other threads, and that nothing is called of what was taken down.
#include "loop/loop_thread.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/fd.h"

namespace nvshare {
namespace {

TEST(LoopThreadTest, PostsRunInOrderOnItsThreadAndACallAfterThem) {
  LoopThread loop;
  std::vector<int> order;
  std::thread::id where;
  for (int i = 0; i < 100; ++i) loop.post([&order, i] { order.push_back(i); });
  loop.call([&] { where = std::this_thread::get_id(); });
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(LoopThreadTest, ACallWithinACallRunsAtOnce) {
  LoopThread loop;
  int calls = 0;
  loop.call([&] { loop.call([&] { ++calls; }); });
  EXPECT_EQ(calls, 1);
}

TEST(LoopThreadTest, AnExceptionOfACallIsTheCallers) {
  LoopThread loop;
  EXPECT_THROW(loop.call([] { throw std::runtime_error("of a call"); }), std::runtime_error);
  bool goes_on = false;
  loop.call([&] { goes_on = true; });
  EXPECT_TRUE(goes_on);
}

// A part that lost a step would wait for it for good; a program that is started anew does not.
TEST(LoopThreadDeathTest, AnExceptionOfAPostEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto throws = [] {
    LoopThread loop;
    loop.post([] { throw std::runtime_error("of a post"); });
    loop.call([] {});
  };
  EXPECT_DEATH(throws(), "of a post");
}

TEST(EventLoopTest, AnExceptionEndsItsCallbackAlone) {
  EventLoop loop;
  bool goes_on = false;
  loop.post([] { throw std::runtime_error("of a post"); });
  loop.post([&] {
    goes_on = true;
    loop.stop();
  });
  loop.run();
  EXPECT_TRUE(goes_on);
}

TEST(LoopThreadTest, WhatWasPostedIsDoneBeforeItEnds) {
  std::atomic<int> done{0};
  {
    LoopThread loop;
    for (int i = 0; i < 50; ++i) loop.post([&] { ++done; });
  }
  EXPECT_EQ(done, 50);
}

// A descriptor that stays readable and a timer that is due: taken down from outside, neither calls again.
TEST(LoopThreadTest, NothingIsCalledOfWhatWasTakenDown) {
  for (int round = 0; round < 50; ++round) {
    LoopThread loop;
    FileDescriptor readable(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    std::atomic<bool> gone{false};
    std::atomic<int> late{0}, calls{0};
    std::promise<void> called;
    std::optional<Watch> watch;
    std::optional<Timer> timer;
    const auto count = [&] {
      if (gone) ++late;
      if (++calls == 1) called.set_value();
    };
    loop.call([&] {
      watch.emplace(loop.loop(), readable.get(), count);
      timer.emplace(loop.loop(), count);
      timer->arm(monotonic_ns() + 1000);
    });
    called.get_future().wait();
    loop.call([&] {
      watch.reset();
      timer.reset();
      gone = true;
    });
    readable.reset();
    loop.call([] {});
    EXPECT_EQ(late, 0);
  }
}

}  // namespace
}  // namespace nvshare
