// Reports that viewers share: one report is made for all that may have the same, and each of its texts is written once, whoever asks for it
// (an admin's `status`, `top`, the page).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "loop/event_loop.h"
#include "protocol/admin.h"

namespace nvshare::scheduler {

// Thread-safe; the report itself never changes.
class SharedReport {
 public:
  using Text = std::shared_ptr<const std::string>;  // a line, or an error's; its newline included
  using Form = std::pair<uint64_t, bool>;           // of a text: what it is since, and whether it is brief
  static constexpr size_t kTextsMax = 8;            // of one report, for viewers that have different ones before it

  SharedReport(protocol::admin::StatusReport report, int64_t taken_at) : report_(std::move(report)), taken_at_(taken_at) {}

  const protocol::admin::StatusReport& report() const { return report_; }
  int64_t taken_at() const { return taken_at_; }  // of CLOCK_MONOTONIC

  // What is new since that report (report_changes.h); 0: all of it, as past kTextsMax. Written by the first caller, for whom others wait.
  // `brief`: without fields that have their defaults.
  Text text(uint64_t since, bool brief = false) const;
  // All of it is written already, by whoever saw it in the making.
  void has_text(bool brief, std::string text) const;
  // All of it, if it is written already, so that nobody waits for it; who takes it in brief takes it in full, too. Null: it is not.
  Text whole_if_written(bool brief) const;
  bool is_written() const { return is_written_ || is_written_in_brief_; }

 private:
  struct Entry {
    std::once_flag once;
    Text text;
  };
  std::shared_ptr<Entry> entry(Form& form) const;

  const protocol::admin::StatusReport report_;
  const int64_t taken_at_;
  mutable std::atomic<bool> is_written_ = false, is_written_in_brief_ = false;
  mutable Mutex mutex_;  // nobody waits for anything else with it
  mutable std::map<Form, std::shared_ptr<Entry>> texts_ GUARDED_BY(mutex_);
};

// Where they are made: in parts, so that clients are served in between. At most a fifth of the time goes into it, or 0.2 ms and a part at
// a time, but no less however many clients there are to be served. The loop's thread alone.
class SharedReports {
 public:
  using Report = std::shared_ptr<const SharedReport>;
  // The next part of a report, of a new one where `begins`. Nullopt: it is not complete yet.
  using LookInParts = std::function<std::optional<protocol::admin::StatusReport>(bool begins)>;
  using Then = std::function<void(const Result<Report>&)>;  // an error: of the scheduler's own

  SharedReports(EventLoop& loop, LookInParts look) : loop_(loop), look_(std::move(look)) {}
  SharedReports(const SharedReports&) = delete;
  SharedReports& operator=(const SharedReports&) = delete;

  // `take` gets the reports that nobody is to be given any more, instead of their end here: with thousands of clients that takes a while.
  void hand_former_to(std::function<void(Report)> take) { take_former_ = std::move(take); }

  // The latest one, if it is at most `age_max_ns` old and its StatusReport::changes are at least `changes_min`, and `then` is called from
  // within; else one that begins from now on and serves all that have asked by then. As old as its beginning.
  void ask(int64_t age_max_ns, uint64_t changes_min, Then then);
  // The whole text of one like that, if it is written: not always the latest one's. Null: there is none.
  SharedReport::Text written(int64_t age_max_ns, uint64_t changes_min, bool brief = false);
  // The latest one's text is: the former one with a text may go. Said at once, so that it ends before the next report is begun: both
  // take and give back memory, for which they would wait for each other.
  void note_what_is_written();

 private:
  struct Asker {
    int64_t age_max_ns;
    uint64_t changes_min;
    Then then;
  };

  static bool serves(const Report& report, int64_t age_max_ns, uint64_t changes_min);

  void begin();  // one for all that wait
  void go_on(bool begins);
  void give(const Result<Report>& report);
  void replace(Report& report, Report by);

  EventLoop& loop_;
  const LookInParts look_;
  std::function<void(Report)> take_former_;
  std::vector<Asker> waiting_;  // for the next one
  std::vector<Asker> served_;   // by the one that is being made
  int64_t begun_at_ = 0, part_ended_at_ = 0;
  Report latest_;
  Report written_;  // the latest that was seen to have its whole text
};

}  // namespace nvshare::scheduler
