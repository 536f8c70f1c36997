// nvsharectl status: what the scheduler knows, as text or as the JSON line that it sent.
#pragma once

namespace nvshare::cli {

// 0, or 1 when no scheduler answers (said on stderr). `wide`: all columns, whatever the terminal has room for.
int status_command(bool json, bool wide);

}  // namespace nvshare::cli
