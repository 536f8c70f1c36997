// What a scheduler says to those that it takes no admin requests from: of their own tenants (protocol/messages.h, AskOwn), over the socket
// that CUDA programs use. Blocking, with a time limit.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

// A line as the admin socket's status. The error says what the scheduler of that directory answered instead.
Result<std::string> ask_own_line(const std::string& runtime_directory);

inline constexpr int kOwnPatienceMs = 5000;
// The same, decoded.
Result<protocol::admin::StatusReport> ask_own(const std::string& runtime_directory, int patience_ms = kOwnPatienceMs);

// Ends the turns of one of these tenants, by its id.
Result<void> release_own(const std::string& runtime_directory, uint64_t tenant);

}  // namespace nvshare::cli
