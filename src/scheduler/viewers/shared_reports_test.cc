// What viewers share: one report for all that may have the same, one text for all that want the same of it.
#include "scheduler/viewers/shared_reports.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "loop/event_loop.h"
#include "protocol/report_changes.h"
#include "repeats.h"
#include "scheduler/testing/failing_memory.h"
#include "scheduler/viewers/status_writer.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

class SharedReportsTest : public ::testing::Test {
 protected:
  ~SharedReportsTest() override {
    loop_.post([this] { loop_.stop(); });
    if (thread_.joinable()) thread_.join();
  }
  void run_loop() {
    if (!thread_.joinable()) thread_ = std::thread([this] { loop_.run(); });
  }
  // `call` on the loop's thread, waited for.
  void on_loop(const Callback& call) {
    run_loop();
    std::promise<void> done;
    loop_.post([&] {
      call();
      done.set_value();
    });
    done.get_future().wait();
  }
  // What such an asker gets; null: an error.
  SharedReports::Report fresh(int64_t age_max_ns, uint64_t changes_min) {
    run_loop();
    std::promise<SharedReports::Report> got;
    loop_.post([&] {
      reports_.ask(age_max_ns, changes_min,
                   [&](const Result<SharedReports::Report>& report) { got.set_value(report ? *report : nullptr); });
    });
    return got.get_future().get();
  }
  SharedReport::Text written(bool brief = false) {
    SharedReport::Text text;
    on_loop([&] { text = reports_.written(kLongNs, 0, brief); });
    return text;
  }
  // What such askers, that come together, are answered with.
  std::vector<SharedReport::Text> ask(StatusWriter& writer, const std::vector<StatusWriter::Wish>& wishes) {
    run_loop();
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
  bool fails_ = false;
  bool gives_away_ = false;  // the report itself, not a copy
  Callback on_part_ = [] {};
  SharedReports reports_{loop_, [this](bool begins) -> std::optional<protocol::admin::StatusReport> {
                           part_ = begins ? 1 : part_ + 1;
                           for (const int64_t until = monotonic_ns() + part_ns_; monotonic_ns() < until;) {
                           }
                           on_part_();
                           if (part_ < parts_) return std::nullopt;
                           if (fails_) throw std::runtime_error("as the test wants it");
                           ++looks_;
                           return gives_away_ ? std::exchange(report_, {}) : report_;
                         }};
  std::thread thread_;
  std::optional<StatusWriter> writer_;  // goes once the loop has ended, which uses it
};

TEST_F(SharedReportsTest, OneServesAllThatMayHaveIt) {
  report_.changes = 7;
  const SharedReports::Report first = fresh(0, 0);
  EXPECT_EQ(fresh(kLongNs, 7), first);
  EXPECT_EQ(looks_, 1);
  EXPECT_NE(fresh(0, 7), first) << "this one wants it new";
  EXPECT_EQ(looks_, 2);
  change();
  EXPECT_EQ(fresh(kLongNs, 9)->report().changes, 9u) << "this one knows of a change";
  EXPECT_EQ(looks_, 3);
}

TEST_F(SharedReportsTest, ATextIsWrittenOnce) {
  report_.changes = 7;
  change();
  const SharedReports::Report report = fresh(0, 0);
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

TEST_F(SharedReportsTest, WhoTakesATextInBriefTakesTheFullOneToo) {
  change();
  const SharedReports::Report first = fresh(0, 0);
  const SharedReport::Text full = first->text(0);
  EXPECT_EQ(written(false), full);
  EXPECT_EQ(written(true), full);
  const SharedReport::Text brief = first->text(0, true);
  EXPECT_LT(brief->size(), full->size());
  EXPECT_EQ(written(false), full);
  EXPECT_EQ(written(true), brief);
  const SharedReports::Report second = fresh(0, 0);
  second->text(0, true);
  EXPECT_EQ(written(true), second->text(0, true));
  EXPECT_EQ(written(false), nullptr) << "not yet of this one";
}

// Nobody who asks while one is made is given that one, unless it may be so old.
TEST_F(SharedReportsTest, WhatIsMadeInPartsIsAsOldAsItsBeginning) {
  parts_ = 4;
  report_.changes = 7;
  std::vector<SharedReports::Report> got(3);
  int open = 3;
  std::promise<void> done;
  const auto ask = [&](size_t who, int64_t age_max_ns) {
    reports_.ask(age_max_ns, 7, [&, who](const Result<SharedReports::Report>& report) {
      got[who] = report ? *report : nullptr;
      if (--open == 0) done.set_value();
    });
  };
  int64_t asked_at = 0;
  run_loop();
  loop_.post([&] {
    ask(0, 0);
    loop_.post([&] {  // it has begun
      asked_at = monotonic_ns();
      ask(1, 0);
      ask(2, kLongNs);
    });
  });
  done.get_future().wait();
  EXPECT_LT(got[0]->taken_at(), asked_at);
  EXPECT_GE(got[1]->taken_at(), asked_at);
  EXPECT_EQ(got[2], got[0]);
  EXPECT_EQ(looks_, 2);
}

TEST_F(SharedReportsTest, AReportThatFailsFailsForThoseItWasMadeForAndNobodyElse) {
  parts_ = 2;
  fails_ = true;
  StatusWriter& writer = writer_.emplace(loop_, reports_);
  EXPECT_EQ(fresh(0, 0), nullptr);
  const auto texts = ask(writer, {{}, {7, kLongNs, 0}});
  EXPECT_NE(texts[0]->find("as the test wants it"), std::string::npos) << *texts[0];
  EXPECT_EQ(*texts[1], *texts[0]);
  fails_ = false;
  EXPECT_NE(fresh(0, 0), nullptr);
}

TEST_F(SharedReportsTest, AReportThatWasReplacedIsHandedOver) {
  std::vector<SharedReports::Report> former;
  on_loop([&] { reports_.hand_former_to([&](SharedReports::Report report) { former.push_back(std::move(report)); }); });
  const SharedReports::Report first = fresh(0, 0);
  first->text(0);
  ASSERT_EQ(written(), first->text(0));
  const SharedReports::Report second = fresh(0, 0);
  EXPECT_EQ(written(), first->text(0)) << "whose text is still good";
  EXPECT_EQ(former, (std::vector{first})) << "as the latest";
  second->text(0);
  EXPECT_EQ(written(), second->text(0));
  EXPECT_EQ(former, (std::vector{first, first}));
}

// Clients and then tenants that come in parts, more of them than there is room for, beside reports that fail and viewers that make others:
// the text is what it would be of the whole report.
TEST_F(SharedReportsTest, WhatIsWrittenWhileAReportIsMadeIsWhatTheReportSays) {
  constexpr size_t kAtOnce = 400;
  StatusWriter& writer = writer_.emplace(loop_, reports_);
  std::mt19937 random(7);
  size_t grown = 0;
  const auto add_some = [&](auto& rows, auto fill) {
    for (size_t i = 0; i < kAtOnce; ++i) {
      if (rows.size() == rows.capacity()) {
        std::remove_reference_t<decltype(rows)> more;
        more.reserve(2 * rows.size() + kAtOnce);
        more = rows;
        writer.keep(std::exchange(rows, std::move(more)));
      }
      rows.emplace_back().id = random();
      fill(rows.back());
    }
  };
  int parts_of_clients = 0;
  on_part_ = [&] {
    if (part_ == 1) {
      protocol::admin::StatusReport left = std::exchange(report_, {});
      writer.keep(std::move(left.clients));
      writer.keep(std::move(left.tenants));
      report_.changes = ++grown;
      report_.clients.reserve(random() % 6000);
      report_.tenants.reserve(random() % 3000);
      writer.made(nullptr);
    }
    const auto text = [&] { return "text " + std::to_string(random()); };
    if (part_ <= parts_of_clients) {
      add_some(report_.clients, [&](protocol::admin::ClientReport& client) { client.program = text(); });
      return writer.made(&report_.clients);
    }
    add_some(report_.tenants, [&](protocol::admin::TenantReport& tenant) { tenant.usage.emplace_back().gpu = text(); });
    writer.made(report_.clients, report_.tenants, part_ == parts_);
  };
  gives_away_ = true;
  for (int round = 0; round < repeats(60, 10); ++round) {
    parts_ = static_cast<int>(1 + random() % 12);
    parts_of_clients = static_cast<int>(random() % static_cast<unsigned>(parts_ + 1));
    fails_ = random() % 4 == 0;
    const bool other = random() % 3 == 0;  // a viewer that has one made first
    if (other) on_loop([&] { reports_.ask(0, 0, [](const Result<SharedReports::Report>&) {}); });
    const auto texts = ask(writer, {{.brief = true}, {}, {.since = 1}});
    if (fails_) continue;
    const SharedReports::Report latest = fresh(kLongNs, 0);
    ASSERT_EQ(latest->report().clients.size(), kAtOnce * static_cast<size_t>(parts_of_clients));
    ASSERT_EQ(latest->report().tenants.size(), kAtOnce * static_cast<size_t>(parts_ - parts_of_clients));
    EXPECT_TRUE(*texts[0] == protocol::admin::encode(latest->report(), true)) << round;
    EXPECT_TRUE(*texts[1] == protocol::admin::encode(latest->report())) << round;
    EXPECT_TRUE(*texts[2] == protocol::admin::encode(protocol::admin::news_since(latest->report(), 1))) << round;
    const auto read = protocol::admin::decode_status(*texts[0]);
    ASSERT_TRUE(read) << read.error().text;
    EXPECT_EQ(read->clients.size(), latest->report().clients.size());
    EXPECT_EQ(read->tenants.size(), latest->report().tenants.size());
  }
}

// Wherever it runs out, on the thread that writes: in the making, behind it, or for good.
TEST_F(SharedReportsTest, WhereMemoryRunsOutViewersGetTheTextOrAnError) {
  constexpr size_t kClients = 1200, kTenants = 600;  // more than are written at once
  struct Spared {
    Spared() { FailingMemory::spare_this_thread(true); }
    ~Spared() { FailingMemory::spare_this_thread(false); }
  } const spared;
  on_loop([] { FailingMemory::spare_this_thread(true); });
  StatusWriter& writer = writer_.emplace(loop_, reports_);
  for (size_t i = 0; i < kClients; ++i) change();
  for (size_t i = 0; i < kTenants; ++i) report_.tenants.emplace_back().id = i + 1;
  parts_ = 2;
  on_part_ = [&] {
    if (part_ == 1) writer.made(nullptr);
    writer.made(&report_.clients);
    writer.made(report_.clients, report_.tenants, part_ == parts_);
    for (const int64_t until = monotonic_ns() + 2'000'000; monotonic_ns() < until;) std::this_thread::yield();  // it is written meanwhile
  };
  const std::vector<StatusWriter::Wish> wishes{{.brief = true}, {}, {.since = report_.changes - 2}};
  for (const int64_t failing : {1, 6}) {
    bool has_failed = true;
    int texts_in_spite = 0, errors = 0;
    for (int64_t passing = 0; has_failed; passing += repeats(1, 3)) {
      std::vector<SharedReport::Text> texts;
      {
        const FailingMemory memory(passing, failing);
        texts = ask(writer, wishes);
        has_failed = memory.has_failed();
      }
      const SharedReports::Report latest = fresh(kLongNs, 0);
      for (const size_t i : {0u, 1u, 2u}) {
        const bool is_error = texts[i]->find("an error of the scheduler's own") != std::string::npos;
        ++(is_error ? errors : texts_in_spite);
        if (is_error) continue;
        const auto read = protocol::admin::decode_status(*texts[i]);
        ASSERT_TRUE(read) << passing << ": " << read.error().text;
        EXPECT_EQ(read->clients.size(), i == 2 ? 1 : kClients) << passing;
        EXPECT_EQ(read->tenants.size(), i == 2 ? 0 : kTenants) << passing;
      }
    }
    EXPECT_GT(texts_in_spite, repeats(6, 2)) << failing;
    EXPECT_GT(errors, 0) << failing;
  }
}

TEST_F(SharedReportsTest, AWriterKeepsNoReportThatWasReplaced) {
  StatusWriter& writer = writer_.emplace(loop_, reports_);
  const std::weak_ptr<const SharedReport> first = fresh(0, 0);
  ask(writer, {{}});
  ask(writer, {{}});
  for (int waited = 0; !first.expired() && waited < 1000; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(first.expired());
}

TEST_F(SharedReportsTest, AReportIsMadeInFewerPartsWhereOthersTakeLong) {
  parts_ = 2'000;
  part_ns_ = 100'000;
  int turns_of_others = 0;
  bool is_done = false;
  std::promise<void> done;
  const Callback other = [&] {
    if (is_done) return done.set_value();
    ++turns_of_others;
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    loop_.post(other);
  };
  loop_.post([&] {
    reports_.ask(0, 0, [&](const Result<SharedReports::Report>&) { is_done = true; });
    loop_.post(other);
  });
  run_loop();
  done.get_future().wait();
  EXPECT_LE(turns_of_others, 150) << "of 2,000 parts some 20 are made beside each of them";
}

TEST_F(SharedReportsTest, OthersAreServedWhileAWriterHasAReportMade) {
  constexpr int kMinuteOfParts = 60'000;
  parts_ = kMinuteOfParts;
  part_ns_ = 1'000'000;
  StatusWriter& writer = writer_.emplace(loop_, reports_);
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
  StatusWriter& writer = writer_.emplace(loop_, reports_);
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
  const auto both = ask(writer, {{.brief = true}, {}, {.brief = true}});
  EXPECT_EQ(both[0], both[2]);
  EXPECT_LT(both[0]->size(), both[1]->size());
  EXPECT_EQ(protocol::admin::encode(*protocol::admin::decode_status(*both[0])), *both[1]);
  EXPECT_EQ(looks_, 4) << "one report, two texts";
  looks_ = 3;
  EXPECT_EQ(looks_, 3);
}

// Whoever is answered wakes up and takes a processor: the loop serves others before the next viewer does.
TEST_F(SharedReportsTest, AWriterAnswersViewersOneAfterTheOtherAndOthersAtOnce) {
  report_.changes = 7;
  StatusWriter& writer = writer_.emplace(loop_, reports_);
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
  run_loop();
  done.get_future().wait();
  EXPECT_EQ(order, "sovovovo");
}

}  // namespace
}  // namespace nvshare::scheduler
