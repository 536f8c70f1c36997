#include "cli/status_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/columns.h"
#include "cli/own_client.h"
#include "cli/scheduler_link.h"
#include "cli/status_view.h"
#include "protocol/admin.h"

namespace nvshare::cli {
namespace {

// Whom it takes no admin requests from it tells of their own. `json`: as it is to be printed.
Result<std::string> status_line(SchedulerLink& link, bool json) {
  if (link.admin) return link.admin->ask(protocol::admin::StatusRequest{.brief = !json});
  auto own = ask_own_line(link.runtime_directory);
  if (own) return own;
  return error_format("%.200s; of your own programs: %.200s", link.admin_error.c_str(), own.error().text);
}

}  // namespace

int status_command(bool json, bool wide) {
  auto fail = [](const char* why) {
    fmt::print(stderr, "nvsharectl: {}\n", why);
    return 1;
  };
  auto link = find_scheduler();
  if (!link) return fail(link.error().text);
  auto line = status_line(*link, json);
  if (!line) return fail(line.error().text);
  // Decoded for --json as well: a scheduler's refusal is no status.
  auto status = protocol::admin::decode_status(*line);
  if (!status) return fail(status.error().text);
  if (json) {
    fmt::print("{}\n", *line);
  } else {
    fmt::print("{}", draw_status(*status, wide ? 0 : columns_of_output()));
  }
  return 0;
}

}  // namespace nvshare::cli
