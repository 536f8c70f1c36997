// Writes answers to `status` on a thread of its own: with thousands of clients the text takes longer than their reports, and no client is
// to wait for it. The loop makes a report for all that ask by then; those that ask while it is written share the next one, so that each
// answer is as new as its question.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "protocol/admin.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {

class StatusWriter {
 public:
  using Look = std::function<protocol::admin::StatusReport()>;  // on the loop's thread
  using Text = std::shared_ptr<const std::string>;              // a line, or an error's; its newline included
  using Done = std::function<void(const Text&)>;                // on the loop's thread, after ask() has returned

  StatusWriter(EventLoop& loop, Look look);
  ~StatusWriter();  // from the loop's thread, which calls no Done any more
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  // On the loop's thread. `since`: only what is new since that report (report_changes.h); 0: all.
  void ask(uint64_t since, Done done);

 private:
  struct Asker {
    uint64_t since;
    Done done;
  };
  using Texts = std::map<uint64_t, Text>;  // by what they are since

  void begin();  // a report for all that wait
  void written(const Texts& texts);
  void write();  // the thread
  static Text text_of(const protocol::admin::StatusReport& report, uint64_t since);

  EventLoop& loop_;
  const Look look_;
  // The loop's own.
  std::vector<Asker> waiting_;  // for the next report
  std::vector<Asker> served_;   // by the one that is being written

  std::mutex mutex_;  // guards what is below; nobody waits for anything else with it
  std::condition_variable changed_;
  std::optional<protocol::admin::StatusReport> report_;  // to be written
  std::set<uint64_t> sinces_;                            // for viewers that have these
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace nvshare::scheduler
