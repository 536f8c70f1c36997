#pragma once

namespace conformance {

// Where a crash, or a hang that is ended by SIGABRT, happened: the calls of the thread, module by module, on standard error. The signal
// then has its usual effect. For a process that has one thread of its own; call it once.
void report_crashes();

}  // namespace conformance
