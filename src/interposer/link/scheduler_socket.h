// Where the scheduler listens for programs, and a connection to it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/descriptors.h"
#include "base/fd.h"

namespace nvshare::interposer {

// None, and errno says why, if no scheduler listens there. Sending on it waits for five seconds at most.
FileDescriptor connect_to_scheduler();
// Such an errno says nothing of the scheduler: this process can open no file, though there may be one.
bool short_of_descriptors(int error);

// The same whatever signals come. False, and errno says why: it is not sent as a whole.
bool send_whole(int fd, std::span<const std::byte> packet, const Descriptors& descriptors);
// There is something to read, or the end of the connection.
bool wait_readable(int fd, int64_t patience_ns);

}  // namespace nvshare::interposer
