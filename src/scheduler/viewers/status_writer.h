// Writes answers to `status` on a thread of its own: with thousands of clients the text takes longer than their reports, and no client is
// to wait for it. A report is had for all that ask by then (shared_reports.h); those that ask while it is made or
// written share the next one, so that each answer is as new as its question, or as old as its asker takes it. Viewers are answered one
// after the other: each that is answered wakes up and takes a processor, which programs that are to be granted something need, too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "loop/event_loop.h"
#include "scheduler/viewers/shared_reports.h"

namespace nvshare::scheduler {

class StatusWriter {
 public:
  using Text = SharedReport::Text;
  using Done = std::function<void(const Text&)>;  // on the loop's thread, after ask() has returned
  struct Wish {
    uint64_t since = 0;        // only what is new since that report (report_changes.h); 0: all
    int64_t age_max_ns = 0;    // so old may it be
    uint64_t changes_min = 0;  // but not of fewer changes
    bool brief = false;        // without fields that have their defaults

    bool shares() const { return age_max_ns > 0; }  // a viewer that follows; else an answer of its own, at once
  };
  static constexpr int64_t kBetweenAnswersNs = 2'000'000;  // to viewers; all admin connections (AdminSockets) have theirs in 0.13 s

  StatusWriter(EventLoop& loop, SharedReports& reports);
  ~StatusWriter();  // from the loop's thread, which calls no Done any more
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  // On the loop's thread.
  void ask(const Wish& wish, Done done);

 private:
  struct Asker {
    Wish wish;
    Done done;
  };
  using Form = SharedReport::Form;
  using Texts = std::map<Form, Text>;
  struct Answer {
    Done done;
    Text text;
  };

  static Form form_of(const Wish& wish) { return {wish.since, wish.brief}; }
  void begin();  // a report for all that wait
  void take(const Result<SharedReports::Report>& report);
  void answer_by_what_is_written();
  void written(const Texts& texts);
  void answer(Asker asker, Text text);
  void answer_next();
  void write();  // the thread

  EventLoop& loop_;
  SharedReports& reports_;
  // The loop's own.
  std::vector<Asker> waiting_;  // for the next report
  std::deque<Answer> answers_;  // of viewers, to be given one after the other
  Timer answer_timer_;          // armed while there are any
  std::vector<Asker> served_;   // by the one that is being made or written

  Mutex mutex_;  // nobody waits for anything else with it
  Condition changed_;
  SharedReports::Report report_ GUARDED_BY(mutex_);               // to be written
  std::vector<SharedReports::Report> former_ GUARDED_BY(mutex_);  // that nobody is to be given any more: they end on the thread
  std::set<Form> forms_ GUARDED_BY(mutex_);                       // that it is to be written in
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nvshare::scheduler
