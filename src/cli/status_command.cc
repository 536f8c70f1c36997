#include "cli/status_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/scheduler_link.h"
#include "cli/status_view.h"
#include "protocol/admin.h"

namespace nvshare::cli {

int status_command(bool json) {
  auto fail = [](const char* why) {
    fmt::print(stderr, "nvsharectl: {}\n", why);
    return 1;
  };
  auto link = find_scheduler();
  if (!link) return fail(link.error().text);
  if (!link->admin) return fail(link->admin_error.c_str());
  auto line = link->admin->ask(protocol::admin::StatusRequest{});
  if (!line) return fail(line.error().text);
  // Decoded for --json as well: a scheduler's refusal is no status.
  auto status = protocol::admin::decode_status(*line);
  if (!status) return fail(status.error().text);
  if (json) {
    fmt::print("{}\n", *line);
  } else {
    fmt::print("{}", draw_status(*status));
  }
  return 0;
}

}  // namespace nvshare::cli
