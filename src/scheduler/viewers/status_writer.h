// Writes answers to `status` on a thread of its own: with thousands of clients the text takes longer than their reports, and no client is
// to wait for it. A report is had for all that ask by then (shared_reports.h); those that ask while it is made or
// written share the next one, so that each answer is as new as its question, or as old as its asker takes it. The text of its clients
// and tenants is written while the report is still being made, hundreds at a time. Viewers are answered one after the other: each that is
// answered wakes up and takes a processor, which programs that are to be granted something need, too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
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

  using Clients = std::vector<protocol::admin::ClientReport>;
  using Tenants = std::vector<protocol::admin::TenantReport>;
  // The clients of the report that is being made, so far; those that are there do not change any more. Null: another one begins. They stay
  // where they are until the next one has begun, or until they are given to keep().
  void made(const Clients* clients);
  // The same, with all of its clients, and the tenants so far; `all`: no more of them come.
  void made(const Clients& clients, const Tenants& tenants, bool all);
  // Ends them once they are not being written.
  void keep(Clients clients) { keep(Kept{std::move(clients), {}}); }
  void keep(Tenants tenants) { keep(Kept{{}, std::move(tenants)}); }

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

  // Clients, and tenants, of the report in the making. Of another one where `report` is another number.
  struct Part {
    uint64_t report = 0;
    std::span<const protocol::admin::ClientReport> clients;  // from the first one on
    std::span<const protocol::admin::TenantReport> tenants;  // the same; none until all clients are there
    size_t clients_most = 0;                                 // for so many is room
  };
  struct Kept {
    Clients clients;
    Tenants tenants;
  };
  void keep(Kept kept);
  void write_soon(const Clients& clients, const Tenants& tenants);
  // What the thread has written of them.
  struct Begun {
    uint64_t report = 0;
    const protocol::admin::ClientReport* clients = nullptr;
    std::map<Form, protocol::admin::StatusText> texts;
    std::map<Form, size_t> bytes;  // of the latest whole ones: so much room they are begun with

    void begin(uint64_t number, const protocol::admin::ClientReport* of) {
      report = number;
      clients = of;
      texts.clear();
    }
  };
  // Where an error ends one of these, no viewer waits for ever: it gets the error's text, or `no_text_`.
  void pass_on(const Texts& texts);
  static Texts write_all(Begun& begun, const SharedReport& report, uint64_t number, const std::set<Form>& forms);
  static void write_some(Begun& begun, const Part& part, const std::set<Form>& forms);
  // `number`: of the report that began last; is it this one?
  static Text finish(Begun& begun, const SharedReport& report, uint64_t number, const Form& form);

  EventLoop& loop_;
  SharedReports& reports_;
  const Text no_text_;  // in place of one for which there is not even the memory to say so
  // The loop's own.
  std::vector<Asker> waiting_;  // for the next report
  std::deque<Answer> answers_;  // of viewers, to be given one after the other
  Timer answer_timer_;          // armed while there are any
  std::vector<Asker> served_;   // by the one that is being made or written
  bool awaits_report_ = false;  // for those served
  std::set<Form> whole_forms_;  // in which clients are written while their report is made
  uint64_t number_ = 0;         // of the report that began last
  size_t told_ = 0;             // of its clients, to the thread
  size_t told_tenants_ = 0;     // the same

  Mutex mutex_;  // nobody waits for anything else with it
  Condition changed_;
  SharedReports::Report report_ GUARDED_BY(mutex_);               // to be written
  uint64_t began_last_ GUARDED_BY(mutex_) = 0;                    // number_, then
  std::vector<SharedReports::Report> former_ GUARDED_BY(mutex_);  // that nobody is to be given any more: they end on the thread
  std::set<Form> forms_ GUARDED_BY(mutex_);                       // that it, or the part, is to be written in
  Part part_ GUARDED_BY(mutex_);                                  // empty: it has been written
  std::vector<Kept> kept_ GUARDED_BY(mutex_);                     // that end on the thread
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nvshare::scheduler
