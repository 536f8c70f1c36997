#include "cli/version_command.h"

#include <fmt/format.h>

#include <map>

#include "cli/scheduler_link.h"
#include "protocol/messages.h"

namespace nvshare::cli {

int version_command() {
  fmt::print("nvsharectl  {}, protocol {} to {}\n", NVSHARE_VERSION, protocol::kVersionMin, protocol::kVersionMax);
  if (auto installation = Installation::of_this_program()) {
    auto library = installation->library();
    fmt::print("library     {}\n", library ? *library : std::string(library.error().text));
  }
  auto link = find_scheduler();
  if (!link) {
    fmt::print("scheduler   none: {}\n", link.error().text);
    return 0;
  }
  auto status = link->admin ? link->admin->status() : Result<protocol::admin::StatusReport>(error_format("%s", link->admin_error.c_str()));
  if (!status) {
    fmt::print("scheduler   in {}, release unknown: {}\n", link->runtime_directory, status.error().text);
    return 0;
  }
  fmt::print("scheduler   {} in {}\n", status->version, status->runtime_dir);
  std::map<std::string, int> clients;
  for (const auto& client : status->clients) {
    ++clients[fmt::format("{}, protocol {}", client.library.empty() ? "an earlier release" : client.library, client.protocol)];
  }
  for (const auto& [release, number] : clients) fmt::print("clients     {} with the library {}\n", number, release);
  return 0;
}

}  // namespace nvshare::cli
