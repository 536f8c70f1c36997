// The page that shows in a browser what `nvsharectl status` says: static files (page/), and the report as JSON at /status.json, the
// same line as `nvsharectl status --json`. Read-only: nothing that is asked of it changes anything.
//
// - The JSON is shared by all browsers that ask, and the report with every `top` (shared_reports.h): whatever their number, it is made at
//   most about three times a second, and besides once for each change that they wait for (change_watch.h), at most every 50 ms.
// - /status.jsonl goes on: a line of all of it in brief (without fields that have their defaults), again every three seconds, or six
//   where news came meanwhile; between, what is new since the line before (protocol/report_changes.h), once something is. ?gpus=UUID,UUID:
//   once something is on one of these. &changes=N: begins with what is new since that report. It ends after a minute, and the page asks
//   again: a browser has six connections to an address for all of its tabs, and the seventh is to have its turn.
// - /past.jsonl: what the scheduler remembers of its last minute, as lines of a trace (past_desk.h), for the page's beginning.
// - Without a token the page is for a browser on this machine: the Host header must be an IP address or "localhost", so that a web site
//   whose name was made to stand for 127.0.0.1 (DNS rebinding) reads nothing.
// - With a token the JSON is answered only to who has it (Authorization: Bearer TOKEN). The static files hold no secret.
// - No other site may read, frame or include it (no CORS headers, Content-Security-Policy, Cross-Origin-Resource-Policy).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "scheduler/viewers/http_server.h"
#include "scheduler/viewers/past_desk.h"
#include "scheduler/viewers/report_desk.h"

namespace nvshare::scheduler {

constexpr int64_t kPageFeedLivesNs = 60'000'000'000;

std::unique_ptr<HttpSite> make_page_site(std::shared_ptr<ReportDesk> desk, std::shared_ptr<PastDesk> past, std::string token,
                                         int64_t feed_lives_ns = kPageFeedLivesNs);

// A token file: one line of 16 to 256 printable characters without blanks, in a file that only its owner can read, root or the scheduler's
// user. The error names the file.
Result<std::string> read_page_token(const std::string& path);

}  // namespace nvshare::scheduler
