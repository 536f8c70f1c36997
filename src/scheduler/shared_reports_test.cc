// What viewers share: one report for all that may have the same, one text for all that want the same of it.
#include "scheduler/shared_reports.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/event_loop.h"
#include "scheduler/status_writer.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

class SharedReportsTest : public ::testing::Test {
 protected:
  ~SharedReportsTest() override {
    if (!thread_.joinable()) return;
    loop_.post([this] { loop_.stop(); });
    thread_.join();
  }
  // What such askers, that come together, are answered with.
  std::vector<SharedReport::Text> ask(StatusWriter& writer, const std::vector<StatusWriter::Wish>& wishes) {
    if (!thread_.joinable()) thread_ = std::thread([this] { loop_.run(); });
    std::vector<SharedReport::Text> texts(wishes.size());
    size_t open = wishes.size();
    std::promise<void> done;
    loop_.post([&] {
      for (size_t i = 0; i < wishes.size(); ++i) {
        writer.ask(wishes[i], [&, i](const SharedReport::Text& text) {
          texts[i] = text;
          if (--open == 0) done.set_value();
        });
      }
    });
    done.get_future().wait();
    return texts;
  }
  void change() {
    report_.changes += 2;
    report_.clients.emplace_back().id = report_.changes;
    report_.clients.back().changed = report_.changes;
  }

  EventLoop loop_;
  protocol::admin::StatusReport report_;
  int looks_ = 0;
  int parts_ = 1;  // of which a report is made that is made in parts
  int part_ = 0;
  int64_t part_ns_ = 0;  // that one takes
  SharedReports reports_{[this] {
                           ++looks_;
                           return report_;
                         },
                         [this](bool begins) -> std::optional<protocol::admin::StatusReport> {
                           part_ = begins ? 1 : part_ + 1;
                           for (const int64_t until = monotonic_ns() + part_ns_; monotonic_ns() < until;) {
                           }
                           if (part_ < parts_) return std::nullopt;
                           ++looks_;
                           return report_;
                         }};
  std::thread thread_;
};

TEST_F(SharedReportsTest, OneServesAllThatMayHaveIt) {
  report_.changes = 7;
  const SharedReports::Report first = reports_.fresh(0, 0);
  EXPECT_EQ(reports_.fresh(kLongNs, 7), first);
  EXPECT_EQ(looks_, 1);
  EXPECT_NE(reports_.fresh(0, 7), first) << "this one wants it new";
  EXPECT_EQ(looks_, 2);
  change();
  EXPECT_EQ(reports_.fresh(kLongNs, 9)->report().changes, 9u) << "this one knows of a change";
  EXPECT_EQ(looks_, 3);
}

TEST_F(SharedReportsTest, ATextIsWrittenOnce) {
  report_.changes = 7;
  change();
  const SharedReports::Report report = reports_.fresh(0, 0);
  EXPECT_FALSE(report->is_written());
  std::vector<SharedReport::Text> texts(8);
  std::vector<std::thread> threads;
  for (SharedReport::Text& text : texts) threads.emplace_back([&] { text = report->text(0); });
  for (std::thread& thread : threads) thread.join();
  for (const SharedReport::Text& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT_TRUE(report->is_written());
  EXPECT_EQ(report->text(7), report->text(7));
  EXPECT_NE(report->text(7), texts[0]);
  EXPECT_EQ(report->text(1000), texts[0]) << "a number that is not reached";
  for (uint64_t since = 1; since < 7; ++since) report->text(since);
  EXPECT_EQ(report->text(8), texts[0]) << "past the bound all of it";
}

TEST_F(SharedReportsTest, WhatIsMadeInPartsIsAsOldAsItsBeginningAndReplacesNothingNewer) {
  parts_ = 3;
  report_.changes = 7;
  const auto rest = [this] {
    SharedReports::Report report;
    while (!report) report = reports_.in_parts(false, 0, 0);
    return report;
  };
  EXPECT_EQ(reports_.in_parts(true, 0, 0), nullptr);
  const int64_t then = monotonic_ns();
  const SharedReports::Report first = rest();
  EXPECT_LT(first->taken_at(), then);
  EXPECT_EQ(reports_.in_parts(true, kLongNs, 7), first) << "it serves others";
  EXPECT_EQ(reports_.in_parts(true, 0, 0), nullptr);
  const SharedReports::Report whole = reports_.fresh(0, 0);
  EXPECT_NE(rest(), whole) << "who began it has it";
  EXPECT_EQ(reports_.fresh(kLongNs, 0), whole);
}

TEST_F(SharedReportsTest, AReportThatWasReplacedIsHandedOver) {
  std::vector<SharedReports::Report> former;
  reports_.hand_former_to([&](SharedReports::Report report) { former.push_back(std::move(report)); });
  const SharedReports::Report first = reports_.fresh(0, 0);
  first->text(0);
  ASSERT_EQ(reports_.written(kLongNs, 0), first);
  const SharedReports::Report second = reports_.fresh(0, 0);
  EXPECT_EQ(reports_.written(kLongNs, 0), first) << "whose text is still good";
  EXPECT_EQ(former, (std::vector{first})) << "as the latest";
  second->text(0);
  EXPECT_EQ(reports_.written(kLongNs, 0), second);
  EXPECT_EQ(former, (std::vector{first, first}));
}

TEST_F(SharedReportsTest, AWriterKeepsNoReportThatWasReplaced) {
  StatusWriter writer(loop_, reports_);
  const std::weak_ptr<const SharedReport> first = reports_.fresh(0, 0);
  ask(writer, {{}});
  ask(writer, {{}});
  for (int waited = 0; !first.expired() && waited < 1000; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(first.expired());
}

TEST_F(SharedReportsTest, AReportIsMadeInFewerPartsWhereOthersTakeLong) {
  parts_ = 1'000'000;
  part_ns_ = 100'000;
  EXPECT_EQ(reports_.in_parts(true, 0, 0), nullptr);
  EXPECT_EQ(part_, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int64_t began = monotonic_ns();
  EXPECT_EQ(reports_.in_parts(false, 0, 0), nullptr);
  EXPECT_GE(monotonic_ns() - began, 5'000'000);
}

TEST_F(SharedReportsTest, OthersAreServedWhileAWriterHasAReportMade) {
  constexpr int kMinuteOfParts = 60'000;
  parts_ = kMinuteOfParts;
  part_ns_ = 1'000'000;
  StatusWriter writer(loop_, reports_);
  int served_at = 0, asks = 0;
  loop_.post([&] {
    for (int i = 0; i < 3; ++i) writer.ask({}, [&](const SharedReport::Text&) { ++asks; });
    loop_.post([&] {
      loop_.post([&] {
        served_at = part_;
        parts_ = part_ + 1;  // the report ends then, however slow the machine is
      });
    });
  });
  ask(writer, {{}});
  EXPECT_GT(served_at, 0);
  EXPECT_LT(served_at, kMinuteOfParts);
  EXPECT_EQ(asks, 3);
}

TEST_F(SharedReportsTest, AWriterMakesOneReportForViewersAndANewOneForWhoWantsIt) {
  report_.changes = 7;
  StatusWriter writer(loop_, reports_);
  const StatusWriter::Wish viewer{0, kLongNs, 7};
  const auto texts = ask(writer, {viewer, viewer});
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(ask(writer, {viewer})[0], texts[0]);
  EXPECT_EQ(looks_, 1);
  EXPECT_NE(ask(writer, {{}})[0], texts[0]) << "as new as its question";
  EXPECT_EQ(looks_, 2);
  change();
  const auto news = ask(writer, {{7, kLongNs, 9}, {0, kLongNs, 9}, {7, kLongNs, 9}});
  EXPECT_EQ(looks_, 3) << "one for all of them";
  EXPECT_EQ(news[0], news[2]);
  const auto report = protocol::admin::decode_status(*news[0]);
  ASSERT_TRUE(report) << report.error().text;
  EXPECT_EQ(report->since, 7u);
  EXPECT_EQ(ask(writer, {{0, kLongNs, 8}})[0], news[1]);
  EXPECT_EQ(looks_, 3);
}

// Whoever is answered wakes up and takes a processor: the loop serves others before the next viewer does.
TEST_F(SharedReportsTest, AWriterAnswersViewersOneAfterTheOtherAndOthersAtOnce) {
  report_.changes = 7;
  StatusWriter writer(loop_, reports_);
  std::string order;
  size_t open = 4;
  std::promise<void> done;
  loop_.post([&] {
    for (const char who : std::string("vvvs")) {
      writer.ask(who == 'v' ? StatusWriter::Wish{0, kLongNs, 7} : StatusWriter::Wish{}, [&, who](const SharedReport::Text&) {
        order += who;
        loop_.post([&] {
          order += 'o';
          if (--open == 0) done.set_value();
        });
      });
    }
  });
  thread_ = std::thread([this] { loop_.run(); });
  done.get_future().wait();
  EXPECT_EQ(order, "sovovovo");
}

}  // namespace
}  // namespace nvshare::scheduler
