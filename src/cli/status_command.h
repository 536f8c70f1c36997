// nvsharectl status: what the scheduler knows, as text or as the JSON line that it sent.
#pragma once

namespace nvshare::cli {

// 0, or 1 when no scheduler answers (said on stderr).
int status_command(bool json);

}  // namespace nvshare::cli
