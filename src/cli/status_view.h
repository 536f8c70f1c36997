// Draws a scheduler's status as text. Pure, thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "protocol/admin.h"

namespace nvshare::cli {

// One line about the scheduler, a table of GPUs, and under each GPU its clients; tenants where any have limits or several clients. Within
// `columns` of a terminal columns of tables are left out, which a last line names; 0: all of it, as wide as it is.
std::string draw_status(const protocol::admin::StatusReport& status, size_t columns = 0);

}  // namespace nvshare::cli
