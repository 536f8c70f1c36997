// Where a driver's function as the program sees it begins. A C function is given nothing of ours, so it takes the process and the gate from
// here; what it calls is given them. Only exported functions make one (tools/lint.py --only reaching).
//
// Nothing is looked up before it is asked for: a submission through the open gate costs what it would without.
#pragma once

#include "interposer/gate/gate.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

class Entry {
 public:
  // Again, by who was handed the process meanwhile. There is one.
  static Entry of(Process&) { return Entry(); }
  // Made when it is first asked for.
  Process& process() const { return this_process(); }
  Gate& gate() const { return program_gate; }
};

// The same for parts of the process, which pass the gate on their own account (pass_gate, submit.h).
class Within {
 public:
  explicit Within(Process& process) : process_(process) {}
  static Within of(Process& process) { return Within(process); }
  Process& process() const { return process_; }
  Gate& gate() const { return process_.gate; }

 private:
  Process& process_;
};

}  // namespace nvshare::interposer
