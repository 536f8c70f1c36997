// What `nvsharectl top` shows, on text screens without colour.
#include <gtest/gtest.h>

#include <random>

#include "cli/top/model.h"
#include "cli/top/pace.h"
#include "cli/top/past.h"
#include "cli/top/view.h"
#include "protocol/report_changes.h"

namespace nvshare::cli::top {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::ComputeReport;
using protocol::admin::GpuReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;
using protocol::admin::UsageReport;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kSecond = 1'000'000'000;

TenantReport tenant(uint64_t id, const std::string& name) {
  TenantReport tenant;
  tenant.id = id;
  tenant.name = name;
  UsageReport usage;
  usage.gpu = "GPU-1";
  tenant.usage = {usage};
  return tenant;
}

ClientReport client(uint64_t id, uint64_t tenant, const std::string& program, const std::string& state, int64_t resident, int64_t swapped) {
  ClientReport client;
  client.id = id;
  client.pid = static_cast<int32_t>(4700 + id);
  client.program = program;
  client.tenant = tenant;
  client.gpu = "GPU-1";
  client.state = state;
  client.since_ns = 8 * kSecond + 200'000'000;
  client.resident = resident;
  client.swapped = swapped;
  client.allocated = resident + swapped;
  return client;
}

StatusReport example() {
  StatusReport status;
  status.version = "1.2.3";
  status.pid = 99;
  status.uptime_ns = 11520 * kSecond;
  status.host_memory_used = 72 * kGiB;
  status.host_memory_budget = 400 * kGiB;
  GpuReport gpu;
  gpu.uuid = "GPU-1";
  gpu.name = "NVIDIA H200";
  gpu.total = 140 * kGiB;
  gpu.foreign = 10 * kGiB;
  gpu.overhead = 2 * kGiB;
  gpu.switch_time_ns = 12 * kSecond;
  gpu.compute_mode = "turns";
  status.gpus = {gpu};
  status.tenants = {tenant(7, "train"), tenant(8, "notebook"), tenant(9, "sweep-of-learning-rates")};
  status.tenants[0].gpu_core_limit = 60;
  status.tenants[0].priority = 10;
  ComputeReport compute;
  compute.gpu = "GPU-1";
  compute.share_window = 58.8;
  status.tenants[0].compute = {compute};
  ClientReport waiting = client(3, 9, "python3", "waiting", 0, 72 * kGiB);
  waiting.waiting_for = "memory: python3 (4701, train) has the GPU";
  waiting.gpu_memory_limit = 80 * kGiB;
  status.clients = {client(1, 7, "python3", "running", 60 * kGiB, 0), client(2, 8, "ipython", "idle", 20 * kGiB, 0), waiting};
  return status;
}

// Five seconds in which train ran, both ran, the sweep ran, memory moved, and nobody ran.
History watched() {
  History history(300, 1);
  StatusReport status = example();
  history.add(status, 10);
  const auto pass = [&](double now_s, int64_t train_ms, int64_t sweep_ms, int64_t swapping_ms) {
    status.tenants[0].usage[0].running_ns += train_ms * 1'000'000;
    status.tenants[2].usage[0].running_ns += sweep_ms * 1'000'000;
    status.tenants[2].usage[0].swapping_ns += swapping_ms * 1'000'000;
    history.add(status, now_s);
  };
  pass(11, 1000, 0, 0);
  pass(12, 990, 900, 0);
  pass(13, 100, 880, 0);
  pass(14, 0, 0, 900);
  status.gpus[0].usage.swapped_out = 6 * kGiB;
  pass(15, 0, 0, 0);
  return history;
}

TEST(Top, PictureOf80Columns) {
  EXPECT_EQ("\n" + text_of(draw(watched().model(), Ui(), 80, 0)), R"(
nvshare 1.2.3  up 3 h 12 min  3 clients, 1 waiting  host 72 GiB of 400 GiB
GPU 0 NVIDIA H200                                     swap out 6 GiB/s  in 0 B/s
  on GPU  [aaaaaaaaaaaaaaaaaaaabbbbbb+###................] 92 GiB of 140 GiB
  in host [cccccccccccccccccccccccc                      ] 72 GiB swapped
  turns   [                                         acc~.] last 5 s
  1 waits, turns of 12 s; runs since 8.2 s: train (python3 4701)

  TENANT      PROGRAM        PID GPU STATE        SINCE   ON GPU  SWAPPED
a train       python3       4701   0 running      8.2 s   60 GiB      0 B
b notebook    ipython       4702   0 idle         8.2 s   20 GiB      0 B
c sweep-of-.. python3       4703   0 waiting      8.2 s      0 B   72 GiB
c 4703 waits for memory: python3 (4701, train) has the GPU
)");
}

TEST(Top, PictureOf120ColumnsWithARowChosen) {
  const History history = watched();
  Ui ui;
  ui.selected = 3;
  EXPECT_EQ("\n" + text_of(draw(history.model(), ui, 120, 15)), R"(
nvshare 1.2.3  up 3 h 12 min  3 clients, 1 waiting  host 72 GiB of 400 GiB
GPU 0 NVIDIA H200                                                                             swap out 6 GiB/s  in 0 B/s
  on GPU  [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbb+#######.............................] 92 GiB of 140 GiB
  in host [cccccccccccccccccccccccccccccccccccccccccccc                                          ] 72 GiB swapped
  turns   [                                                                                 acc~.] last 5 s
  1 waits, turns of 12 s; runs since 8.2 s: train (python3 4701)

  TENANT      PROGRAM        PID GPU STATE        SINCE   ON GPU  SWAPPED    LIMIT SHARE/LIMIT PRIO WAITING FOR
a train       python3       4701   0 running      8.2 s   60 GiB      0 B     none     59/60 %   10
b notebook    ipython       4702   0 idle         8.2 s   20 GiB      0 B     none        none    0
c sweep-of-.. python3       4703   0 waiting      8.2 s      0 B   72 GiB   80 GiB        none    0 memory: python3 (4..

sweep-of-learning-rates: limits: memory 80 GiB, core none; priority 0; 0 turns, ran 0 s, waited 0 s
waits for memory: python3 (4701, train) has the GPU
q leave  ? keys  s sort: GPU  / filter  m c r p: limits, priority  z pause
)");
}

TEST(Top, PictureOf40Columns) {
  const History history = watched();
  Ui ui;
  ui.selected = 3;
  EXPECT_EQ("\n" + text_of(draw(history.model(), ui, 40, 17)), R"(
nvshare 1.2.3  3 clients, 1 waiting
GPU 0 NVIDIA H200  out 6 GiB/s  in 0 B/s
  on GPU  [aaab+#] 92 GiB of 140 GiB
  in host [ccc   ] 72 GiB swapped
  turns   [ acc~.] last 5 s
  1 waits; runs since 8.2 s: train (py..

  PROGRAM        PID STATE       ON GPU
a python3       4701 running     60 GiB
b ipython       4702 idle        20 GiB
c python3       4703 waiting        0 B
sweep-of-learning-rates
  memory 80 GiB, core none; priority
  0; 0 turns, ran 0 s, waited 0 s
waits for memory: python3 (4701,
  train) has the GPU
q leave  ? keys  s sort: GPU  / filter
)");
  EXPECT_EQ(text_of(draw(history.model(), ui, 25, 3)), "top needs 40 columns,\nhere are 25; q leaves\n\n");
}

TEST(Top, ALongTimeIsShownByItsFirstUnit) {
  StatusReport status = example();
  status.clients[0].since_ns = 269'000'000'000;
  History history(300, 1);
  history.add(status, 1);
  EXPECT_NE(text_of(draw(history.model(), Ui(), 80, 0)).find("running      4 min   60 GiB"), std::string::npos)
      << text_of(draw(history.model(), Ui(), 80, 0));
}

TEST(Top, OfAPromptThatIsTooLongTheEndIsShown) {
  Ui ui;
  ui.prompt = Ui::Prompt::kMemory;
  ui.prompt_tenant = 9;
  ui.typed = "12345Mi";
  EXPECT_NE(text_of(draw(watched().model(), ui, 40, 17)).find("(such as 8Gi, or none): 12345Mi_\n"), std::string::npos)
      << text_of(draw(watched().model(), ui, 40, 17));
}

TEST(Top, NoLineIsWiderOrLowerThanTheScreen) {
  StatusReport status = example();
  status.tenants[0].name = "n\xc3\xa4me with a very long text \033[31m that goes on and on and on and on and on";
  for (uint64_t i = 10; i < 60; ++i) status.clients.push_back(client(i, 8, "a-program-with-a-long-name", "waiting", i * kGiB, kGiB));
  for (int i = 0; i < 7; ++i) {
    status.gpus.push_back(status.gpus[0]);
    status.gpus.back().uuid = "GPU-" + std::to_string(i + 2);
  }
  History history(300, 1);
  history.add(status, 1);
  history.fail("no scheduler answers at a place with quite a long name, so that the line would be wider than the screen is");
  for (size_t width : {20, 40, 60, 80, 109, 110, 200}) {
    for (size_t height : {3, 10, 24, 60}) {
      Ui ui;
      ui.selected = 40;
      const Screen screen = draw(history.model(), ui, width, height);
      EXPECT_EQ(screen.size(), height);
      for (const Line& line : screen) {
        EXPECT_LE(line.columns(), width);
        EXPECT_EQ(line.text().find('\033'), std::string::npos) << line.text();
      }
    }
  }
}

TEST(Top, TheChosenRowIsOnTheScreenHoweverFarDown) {
  StatusReport status = example();
  for (uint64_t i = 10; i < 90; ++i) status.clients.push_back(client(i, 8, "python3", "waiting", kGiB, kGiB));
  History history(300, 1);
  history.add(status, 1);
  Ui ui;
  ui.selected = 85;
  EXPECT_NE(text_of(draw(history.model(), ui, 80, 24)).find("   4785 "), std::string::npos) << text_of(draw(history.model(), ui, 80, 24));
}

TEST(Top, EverybodyWithMemoryHasAMarkInTheBar) {
  StatusReport status = example();
  status.clients[1].resident = 1;  // a 140th of a column
  History history(300, 1);
  history.add(status, 1);
  const std::string text = text_of(draw(history.model(), Ui(), 80, 0));
  EXPECT_NE(text.find("ab"), std::string::npos) << text;
}

TEST(Top, ALetterIsFreeAgainWhenItsTenantIsGone) {
  History history(2, 1);
  StatusReport status = example();
  history.add(status, 1);
  EXPECT_EQ(history.model().rows[1].letter, 'b');
  status.tenants.erase(status.tenants.begin());
  status.clients.erase(status.clients.begin());
  history.add(status, 2);
  status.tenants.push_back(tenant(20, "new"));
  status.clients.push_back(client(20, 20, "new", "running", 1, 0));
  history.add(status, 3);
  EXPECT_EQ(history.model().rows[0].letter, 'b');  // of those who stayed
  EXPECT_EQ(history.model().rows[2].letter, 'a');
}

TEST(Top, AnotherSchedulersCountersAreNoTraffic) {
  History history(300, 1);
  StatusReport status = example();
  status.gpus[0].usage.swapped_out = 5 * kGiB;
  history.add(status, 1);
  status.epoch = 2;
  status.gpus[0].usage.swapped_out = 7 * kGiB;
  history.add(status, 2);
  EXPECT_FALSE(history.model().gpus[0].out_rate);
  status.gpus[0].usage.swapped_out = 8 * kGiB;
  history.add(status, 4);
  EXPECT_EQ(history.model().gpus[0].out_rate, 0.5 * static_cast<double>(kGiB));
}

std::vector<std::string> type(Ui& ui, const Model& model, const std::string& bytes) {
  std::string rest;
  std::vector<std::string> change;
  for (const Key key : keys_of(bytes, rest, true)) {
    if (const Wish wish = press(ui, model, key); !wish.change.empty()) change = wish.change;
  }
  return change;
}

TEST(Top, KeysSetLimitsOfTheChosenTenant) {
  const History history = watched();
  Ui ui;
  EXPECT_TRUE(type(ui, history.model(), "p").empty());
  EXPECT_TRUE(ui.bad_message);  // no row is chosen
  EXPECT_EQ(type(ui, history.model(), "\033[B\033[Bp-5\r"), (std::vector<std::string>{"8", "priority=-5"}));
  EXPECT_EQ(type(ui, history.model(),
                 "km9\x7f"
                 "8Gi\r"),
            (std::vector<std::string>{"7", "memory=8Gi"}));
  EXPECT_EQ(type(ui, history.model(), "z"), (std::vector<std::string>{"7", "paused=yes"}));
  EXPECT_EQ(type(ui, history.model(), "jjc40\r"), (std::vector<std::string>{"9", "ceiling=40"}));
  EXPECT_EQ(type(ui, history.model(), "r40\r"), (std::vector<std::string>{"9", "core=40"}));
  EXPECT_TRUE(type(ui, history.model(), "c\r").empty());
  EXPECT_TRUE(type(ui, history.model(), "c4\033").empty());
  EXPECT_EQ(ui.prompt, Ui::Prompt::kNone);
}

TEST(Top, WhatIsTypedIsSeenInEightyColumns) {
  StatusReport status = example();
  status.tenants[0].name = std::string(100, 'x');
  History history(300, 1);
  history.add(status, 1);
  for (const char* key : {"m", "c", "r", "p"}) {
    Ui ui;
    ui.selected = 1;
    type(ui, history.model(), std::string(key) + "1234");
    const std::string screen = text_of(draw(history.model(), ui, 80, 24));
    EXPECT_NE(screen.find("1234_\n"), std::string::npos) << screen;
    EXPECT_NE(screen.find("\n  memory none"), std::string::npos) << "below the name, which fills a line: " << screen;
  }
}

TEST(Top, TheKeysAreExplainedInEightyColumns) {
  Ui ui;
  ui.help = true;
  const Model model = watched().model();
  EXPECT_EQ(text_of(draw(model, ui, 80, 24)), text_of(draw(model, ui, 200, 24)));
}

TEST(Top, KeysSortAndFilter) {
  const History history = watched();
  Ui ui;
  type(ui, history.model(), "ss");  // by swapped
  EXPECT_EQ(rows_shown(history.model(), ui)[0]->tenant, "sweep-of-learning-rates");
  type(ui, history.model(), "/sweep\r");
  EXPECT_EQ(rows_shown(history.model(), ui).size(), 1u);
  type(ui, history.model(), "\033");
  EXPECT_EQ(rows_shown(history.model(), ui).size(), 3u);
  EXPECT_TRUE(press(ui, history.model(), {Key::Kind::kText, 'q'}).quit);
}

TEST(Top, KeysThatComeInPartsAreOneKey) {
  std::string rest;
  EXPECT_TRUE(keys_of("\033", rest, false).empty());
  EXPECT_TRUE(keys_of("[", rest, false).empty());
  const auto keys = keys_of("Bq", rest, false);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].kind, Key::Kind::kDown);
  EXPECT_EQ(keys[1].text, 'q');
  EXPECT_TRUE(keys_of("\033", rest, false).empty());
  const auto lone = keys_of("", rest, true);
  ASSERT_EQ(lone.size(), 1u);
  EXPECT_EQ(lone[0].kind, Key::Kind::kEscape);
  EXPECT_TRUE(keys_of("\033[15~\033OP", rest, false).empty());  // F5, F1: nothing of ours
}

// Between two complete reports: new states at once, what takes two reports as it was.
TEST(Top, WhatIsNewIsShownAndRatesStay) {
  History history = watched();
  const Model before = history.model();
  ASSERT_TRUE(before.gpus[0].out_rate);
  StatusReport status = example();
  status.changes = 1;
  status.clients[0].state = "dropping";
  status.clients[0].changed = 1;
  status.clients.push_back(client(9, 9, "new", "running", 0, 0));
  status.clients.back().changed = 1;
  history.refresh(status);
  EXPECT_EQ(history.model().rows[0].client.state, "dropping");
  EXPECT_EQ(history.model().rows.size(), before.rows.size() + 1);
  EXPECT_EQ(history.model().gpus[0].out_rate, before.gpus[0].out_rate);
  EXPECT_EQ(history.model().gpus[0].strip, before.gpus[0].strip);
}

// Clients that come, leave, change their states and places, and tenants that change, of which only what is new is told: what is shown is
// what would be shown if all of it were made anew.
TEST(Top, WhatIsMadeOfNewsAloneIsWhatAllOfItWouldBe) {
  protocol::admin::ChangeMarks marks;
  StatusReport there = example();
  there.gpus.push_back(there.gpus[0]);
  there.gpus[1].uuid = "GPU-2";
  there.changes = 1;
  marks.mark(there);
  History history(300, 1);
  history.add(there, 10);
  StatusReport shown = there;
  RowLines lines;
  Ui ui;
  std::minstd_rand random(20261129);
  const auto below = [&random](size_t end) { return random() % std::max<size_t>(end, 1); };
  for (uint64_t changes = 2; changes < 500; ++changes) {
    there.changes = changes;
    there.uptime_ns += kSecond;
    for (ClientReport& each : there.clients) each.since_ns += kSecond;
    const uint64_t kind = below(6), id = 100 + changes;
    const auto at = [&there](size_t i) { return there.clients.begin() + static_cast<std::ptrdiff_t>(i); };
    if (kind == 0 || there.clients.empty()) {
      there.tenants.push_back(tenant(id, "t" + std::to_string(id)));
      const auto came = there.clients.insert(at(below(there.clients.size() + 1)), client(id, id, "new", "waiting", kGiB, 0));
      if (below(2) == 0) came->gpu = "GPU-2";
    } else if (kind == 1) {
      there.clients.erase(at(below(there.clients.size())));
    } else if (kind == 2) {
      std::swap(there.clients[below(there.clients.size())], there.clients.back());
    } else if (kind == 3) {
      there.tenants[below(there.tenants.size())].priority = static_cast<int>(below(90));
    } else {
      ClientReport& other = there.clients[below(there.clients.size())];
      other.state = other.state == "running" ? "waiting" : "running";
      other.since_ns = 0;
    }
    marks.mark(there);
    StatusReport news = protocol::admin::news_since(there, changes - 1);
    ASSERT_TRUE(protocol::admin::complete(news, shown));
    shown = news;
    History anew = history;
    history.refresh(shown);
    for (ClientReport& each : news.clients) each.changed = UINT64_MAX;
    anew.refresh(news);
    ASSERT_EQ(history.model().rows.size(), there.clients.size());
    ui.selected = below(40) + 1;
    const size_t width = below(9) == 0 ? 80 : 160;
    ASSERT_EQ(text_of(draw(history.model(), ui, width, 600, lines)), text_of(draw(anew.model(), ui, width, 600)))
        << changes << ", kind " << kind;
  }
}

TEST(Pace, WholeReportsComeAsOftenAsTheirCostAllows) {
  Pace pace;
  EXPECT_EQ(pace.whole_every_s(1), 1) << "before the first";
  pace.looked_at_all(0.0005);
  EXPECT_EQ(pace.whole_every_s(1), 1) << "a small one";
  pace.looked_at_all(0.012);
  EXPECT_DOUBLE_EQ(pace.whole_every_s(1), 0.012 / Pace::kWholeShare);
  EXPECT_EQ(pace.whole_every_s(10), 10) << "no oftener than is wished for";
  pace.looked_at_all(1);
  EXPECT_EQ(pace.whole_every_s(1), Pace::kWholeEveryMaxS);
  EXPECT_EQ(pace.wait_s(), Pace::kApartMinS) << "changes do not wait for that";
}

TEST(Pace, AChangeAfterAQuietTimeIsShownAtOnceAndEndlessOnesTakeTheirShare) {
  constexpr double kLookS = 0.005;
  Pace pace;
  double now_s = 100;
  pace.looked(kLookS, now_s);
  EXPECT_EQ(pace.wait_s(), Pace::kApartMinS);
  double used_s = 0;
  const double begin_s = now_s;
  while (now_s < begin_s + 60) {
    now_s += pace.wait_s() + kLookS;
    pace.looked(kLookS, now_s);
    used_s += kLookS;
  }
  EXPECT_LE(used_s, Pace::kShare * 60 + Pace::kSavedS + kLookS);
  EXPECT_GE(used_s, Pace::kShare * 60 * 0.9) << "and no less";
  now_s += 60;
  pace.looked(kLookS, now_s);
  EXPECT_EQ(pace.wait_s(), Pace::kApartMinS);
}

TEST(Top, LinesHaveStylesOnlyWithColour) {
  Line line("ab", Style::kTenant0);
  line.add(" c", Style::kSelected);
  EXPECT_EQ(line.ansi(true), "\033[36mab\033[0m\033[7m c\033[0m");
  EXPECT_EQ(line.ansi(false), "ab\033[7m c\033[0m");
  line.cut(3);
  EXPECT_EQ(line.ansi(false), "ab\033[7m \033[0m");
}

TEST(Top, NamesOfWideCharactersTakeTheirColumns) {
  Line line("学習");
  line.fill_to(6);
  line.add("|");
  EXPECT_EQ(line.text(), "学習  |");
  Line cut("学習ab");
  cut.cut(3);
  EXPECT_EQ(cut.text(), "学");
  EXPECT_EQ(cut.columns(), 2U);
}

std::string seen(policy::ClientId client, policy::TenantId tenant, policy::ClientState state, int64_t at_s) {
  policy::ClientGlimpse glimpse{};
  glimpse.client = client;
  glimpse.tenant = tenant;
  glimpse.state = state;
  return scheduler::encode_trace(scheduler::TraceSighting{at_s * kSecond, glimpse, ""});
}

std::string named(policy::ClientId client, const std::string& gpu) {
  return scheduler::encode_trace(scheduler::TraceNames{client, "train", 4711, client, "anna", gpu});
}

// As the scheduler tells it: from second 100 to 110.
Past remembered() {
  using policy::ClientState;
  Past past;
  for (const std::string& line :
       {scheduler::encode_trace(scheduler::TraceStart{"1.2.3", std::nullopt}), named(1, "NVIDIA H200, GPU-1"), named(9, "GPU-1"),
        named(3, "NVIDIA H200, GPU-2"), seen(1, 1, ClientState::kRunning, 100), seen(9, 9, ClientState::kWaiting, 100),
        seen(3, 3, ClientState::kRunning, 101), seen(1, 1, ClientState::kIdle, 103), seen(9, 9, ClientState::kLoading, 104),
        seen(9, 9, ClientState::kRunning, 106), scheduler::encode_trace(scheduler::TraceEvent{109 * kSecond, policy::ClientLeft{9, true}}),
        seen(1, 1, ClientState::kRunning, 109), scheduler::encode_trace(scheduler::TraceEvent{110 * kSecond, policy::Tick{}})}) {
    const auto added = past.add(line);
    EXPECT_TRUE(added) << line;
  }
  return past;
}

TEST(Top, TheStripBeginsWithWhatTheSchedulerRemembers) {
  StatusReport status = example();
  status.clients = {client(1, 1, "train", "running", kGiB, 0)};
  status.tenants = {tenant(1, "anna")};
  History history(300, 1);
  history.begin_with(remembered(), status);
  history.add(status, 200);
  EXPECT_EQ(history.model().gpus[0].strip, "aaa.~~bbba") << "another one's, who has left, has a letter, too";
  status.tenants[0].usage[0].running_ns += kSecond;
  history.add(status, 201);
  EXPECT_EQ(history.model().gpus[0].strip, "aaa.~~bbbaa") << "and goes on";

  History coarse(3, 4);
  coarse.begin_with(remembered(), status);
  coarse.add(status, 200);
  EXPECT_EQ(coarse.model().gpus[0].strip, "ab") << "of whole cells: the last four seconds, and those before";
}

TEST(Top, NothingRememberedIsNoStrip) {
  Past past;
  History history(300, 1);
  history.begin_with(past, example());
  history.add(example(), 200);
  EXPECT_EQ(history.model().gpus[0].strip, "");
  EXPECT_FALSE(past.add("no line of a trace"));
}

}  // namespace
}  // namespace nvshare::cli::top
