// Draws a scheduler's status as text. Pure, thread-safe.
#pragma once

#include <string>

#include "protocol/admin.h"

namespace nvshare::cli {

// One line about the scheduler, a table of GPUs, and under each GPU its clients; tenants where any have limits or several clients.
std::string draw_status(const protocol::admin::StatusReport& status);

}  // namespace nvshare::cli
