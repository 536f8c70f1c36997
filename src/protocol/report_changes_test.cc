// What is new since a report, and that a viewer that puts it together again sees what a complete report says.
#include "protocol/report_changes.h"

#include <gtest/gtest.h>

namespace nvshare::protocol::admin {
namespace {

StatusReport report_of(uint64_t changes, std::vector<std::pair<uint64_t, std::string>> clients) {
  StatusReport report;
  report.epoch = 5;
  report.pid = 99;
  report.changes = changes;
  report.uptime_ns = static_cast<int64_t>(changes) * 1000;
  for (auto& [id, state] : clients) {
    ClientReport& client = report.clients.emplace_back();
    client.id = id;
    client.tenant = id;
    client.state = state;
    client.since_ns = 7;
    report.tenants.emplace_back().id = id;
  }
  return report;
}

TEST(ReportChanges, OnlyWhatChangedIsSentAndTheViewerHasAll) {
  ChangeMarks marks;
  StatusReport first = report_of(10, {{1, "running"}, {2, "waiting"}, {3, "waiting"}});
  marks.mark(first);
  StatusReport second = report_of(14, {{1, "waiting"}, {3, "waiting"}, {4, "idle"}});
  second.clients[1].resident = 4096;  // an amount alone is no change
  second.tenants[1].priority = 9;
  second.tenants[0].sharing = "turns";
  first.bounds.values = second.bounds.values = {{"connections of a process", 512}};
  second.bounds.connections = 3;
  marks.mark(second);

  Result<StatusReport> news = decode_status(encode(news_since(second, 10)));
  ASSERT_TRUE(news) << news.error().text;
  ASSERT_EQ(news->clients.size(), 2u);
  EXPECT_EQ(news->clients[0].id, 1u);
  EXPECT_EQ(news->clients[1].id, 4u);
  ASSERT_EQ(news->tenants.size(), 3u) << "1 shares otherwise, 3 has another priority, 4 is new";
  EXPECT_TRUE(news->bounds.values.empty()) << "a sixth of such a line, and never other than before";
  ASSERT_TRUE(complete(*news, first));
  ASSERT_EQ(news->clients.size(), 3u);
  EXPECT_EQ(news->clients[0].state, "waiting");
  EXPECT_EQ(news->clients[1].id, 3u);
  EXPECT_EQ(news->clients[1].since_ns, 7 + 4000) << "in the same state for so much longer";
  EXPECT_EQ(news->clients[2].id, 4u);
  ASSERT_EQ(news->tenants.size(), 4u);
  EXPECT_EQ(news->tenants[0].sharing, "turns");
  EXPECT_EQ(news->tenants[2].priority, 9);
  EXPECT_EQ(news->changes, 14u);
  EXPECT_EQ(news->bounds.values, second.bounds.values);
  EXPECT_EQ(news->bounds.connections, 3);
  EXPECT_EQ(news->clients[0].changed, 14u);
  EXPECT_LT(news->clients[1].changed, 14u);
  EXPECT_EQ(encode(*news).find("\"there\""), std::string::npos) << "it is complete now";

  EXPECT_TRUE(news_since(second, 14).clients.empty());
}

TEST(ReportChanges, MarksInPartsAreThoseAtOnce) {
  ChangeMarks at_once, in_parts;
  for (uint64_t changes = 1; changes < 400; ++changes) {
    std::vector<std::pair<uint64_t, std::string>> clients;  // 40 at a time, of which one leaves and one comes each time
    for (uint64_t id = changes; id < changes + 40; ++id) clients.emplace_back(id, (id * changes) % 7 == 0 ? "waiting" : "running");
    StatusReport whole = report_of(changes, clients), parts = whole;
    at_once.mark(whole, changes + 2);
    in_parts.begin(changes + 2);
    if (changes % 5 == 0) {  // an error's
      in_parts.mark_some(parts, 13);
      in_parts.begin(changes + 2);
    }
    int calls = 1;
    while (!in_parts.mark_some(parts, 17)) ++calls;
    EXPECT_EQ(calls, 5);
    for (size_t i = 0; i < whole.clients.size(); ++i) {
      ASSERT_EQ(parts.clients[i].changed, whole.clients[i].changed) << changes;
      ASSERT_EQ(parts.tenants[i].changed, whole.tenants[i].changed) << changes;
      if (i + 1 == whole.clients.size()) {
        EXPECT_EQ(whole.clients[i].changed, changes + 2) << "it is new";
      }
    }
  }
}

// A report that was made in parts begins at 12, when the first client waited, and shows the second as it was by 13.
TEST(ReportChanges, WhatChangedWhileAReportWasMadeIsNotMissed) {
  ChangeMarks marks;
  StatusReport first = report_of(12, {{1, "waiting"}, {2, "waiting"}});
  marks.mark(first);
  StatusReport second = report_of(12, {{1, "waiting"}, {2, "running"}});  // 1 runs by now, and had been looked at before
  marks.mark(second, 13);
  EXPECT_EQ(news_since(second, 12).clients.size(), 1u) << "for a viewer of the first";
  StatusReport third = report_of(13, {{1, "running"}, {2, "running"}});
  marks.mark(third, 13);
  EXPECT_EQ(news_since(third, 12).clients.size(), 2u) << "for viewers of either";
}

TEST(ReportChanges, AllIsSentToViewersThatKnowNothingOrAnotherScheduler) {
  ChangeMarks marks;
  StatusReport report = report_of(3, {{1, "running"}});
  marks.mark(report);
  EXPECT_EQ(news_since(report, 0).clients.size(), 1u);
  EXPECT_EQ(news_since(report, 4000).clients.size(), 1u) << "of a scheduler that has ended";
  EXPECT_EQ(encode(news_since(report, 0)), encode(report));

  StatusReport news = news_since(report, 2), before = report_of(2, {});
  before.epoch = 4;
  EXPECT_FALSE(complete(news, before)) << "of another scheduler";
  before.epoch = 5;
  before.changes = 1;
  EXPECT_FALSE(complete(news, before)) << "not since that report";
}

// Clients leave, come and change their places: at any of them the rest is still found.
TEST(ReportChanges, WhatIsLeftOutIsPutBackWhereverItIs) {
  using Clients = std::vector<std::pair<uint64_t, std::string>>;
  const Clients first = {{1, "idle"}, {2, "idle"}, {3, "idle"}, {4, "idle"}, {5, "idle"}, {6, "idle"}};
  for (const Clients& then :
       {Clients{{1, "idle"}, {3, "idle"}, {4, "idle"}, {6, "running"}}, Clients{{5, "idle"}, {6, "idle"}},
        Clients{{6, "idle"}, {5, "idle"}, {4, "running"}, {3, "idle"}, {2, "idle"}, {1, "idle"}},
        Clients{{7, "idle"}, {1, "idle"}, {9, "idle"}, {2, "waiting"}, {6, "idle"}, {8, "idle"}, {3, "idle"}}, Clients{}}) {
    ChangeMarks marks;
    StatusReport before = report_of(1, first), after = report_of(2, then);
    marks.mark(before);
    marks.mark(after);
    StatusReport news = news_since(after, 1);
    ASSERT_TRUE(complete(news, before));
    ASSERT_EQ(news.clients.size(), then.size());
    for (size_t i = 0; i < then.size(); ++i) {
      EXPECT_EQ(news.clients[i].id, then[i].first);
      EXPECT_EQ(news.clients[i].state, then[i].second);
    }
  }
}

TEST(ReportChanges, AStateThatComesBackIsAChangeToThoseThatSawAnother) {
  ChangeMarks marks;
  StatusReport report = report_of(1, {{1, "running"}});
  marks.mark(report);
  for (uint64_t changes : {2, 3}) {
    report = report_of(changes, {{1, changes == 2 ? "waiting" : "running"}});
    marks.mark(report);
  }
  EXPECT_EQ(news_since(report, 2).clients.size(), 1u);
  EXPECT_EQ(news_since(report, 1).clients.size(), 1u) << "it had another turn between, for all that the viewer knows";
}

}  // namespace
}  // namespace nvshare::protocol::admin
