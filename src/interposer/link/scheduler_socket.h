// Where the scheduler listens for programs, and a connection to it. Thread-safe.
#pragma once

#include "base/fd.h"

namespace nvshare::interposer {

// None, and errno says why, if no scheduler listens there. Sending on it waits for five seconds at most.
FileDescriptor connect_to_scheduler();

}  // namespace nvshare::interposer
