// What of a report is new to a viewer that has an earlier one: a change costs what changed, not what there is. The scheduler marks clients
// and tenants (ChangeMarks), leaves out those that such a viewer knows (news_since), and the viewer puts the rest back (complete). Pure,
// not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "protocol/admin.h"

namespace nvshare::protocol::admin {

// Sets ClientReport::changed and TenantReport::changed of one report after the other: StatusReport::changes of the report that first had
// them as they are, but for amounts and times. `changes`: the number when the report was complete, which is later than its own where it was
// made in parts: a viewer of it asks again, and must not miss what changed behind the part that was made.
class ChangeMarks {
 public:
  void mark(StatusReport& report, uint64_t changes);
  // The same in parts of at most so many clients or tenants; true: all of them are marked.
  void begin(uint64_t changes);
  bool mark_some(StatusReport& report, size_t most);
  void mark(StatusReport& report) { mark(report, report.changes); }

 private:
  struct Seen {
    size_t looks = 0;  // a hash of what is looked at
    uint64_t changed = 0;
    uint64_t round = 0;
  };
  using Known = std::unordered_map<uint64_t, Seen>;  // by the client's or tenant's id

  uint64_t see(Known& known, uint64_t id, size_t looks) const;
  void forget_those_that_left(Known& known, size_t there) const;

  Known clients_, tenants_;
  uint64_t round_ = 0, changes_ = 0;
  size_t at_ = 0;  // of the report's clients, and of its tenants behind them
};

// The report as it is for a viewer that has the one of `since`: without the clients and tenants that it knows, and the bounds in force,
// which never change, with StatusReport::since and `there`. 0, or a number that this scheduler has not reached: all of it.
StatusReport news_since(const StatusReport& report, uint64_t since);

// Puts back into `news` what news_since() left out, from `before`, which is complete: clients in the order of `there`, in their states for
// so much longer. What was not left out has the report's `changes` as its `changed`. Tenants that have left stay until the next complete
// report. False: `news` is of another scheduler, or not for `before`.
bool complete(StatusReport& news, StatusReport before);

}  // namespace nvshare::protocol::admin
