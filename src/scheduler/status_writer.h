// Writes answers to `status` on a thread of its own: with thousands of clients the text takes longer than their reports, and no client is
// to wait for it. The loop makes a report for all that ask by then; those that ask while it is written share the next one, so that each
// answer is as new as its question.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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

  void ask(Done done);  // on the loop's thread

 private:
  void begin();  // a report for all that wait
  void written(const Text& text);
  void write();  // the thread
  Text text_of(const protocol::admin::StatusReport& report) const;

  EventLoop& loop_;
  const Look look_;
  // The loop's own.
  std::vector<Done> waiting_;  // for the next report
  std::vector<Done> served_;   // by the one that is being written

  std::mutex mutex_;  // guards what is below; nobody waits for anything else with it
  std::condition_variable changed_;
  std::optional<protocol::admin::StatusReport> report_;  // to be written
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace nvshare::scheduler
