#include "cli/version_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/doctor/collect.h"
#include "cli/scheduler_link.h"
#include "protocol/messages.h"

namespace nvshare::cli {
namespace {

struct Place {
  const char* name;
  const char* path;  // below the installation
};
constexpr Place kPlaces[] = {{"scheduler", "/bin/nvshare-scheduler"},
                             {"device plugin", "/bin/nvshare-device-plugin"},
                             {"DRA driver", "/bin/nvshare-dra-driver"},
                             {"Slurm plugin", "/lib/nvshare/nvshare-slurm-step"},
                             {"Slurm plugin", "/lib/nvshare/slurm/nvshare-slurm-step"}};

// "nvsharectl 0.2.0\n" -> "0.2.0"
std::string last_word(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return {};
  const size_t blank = text.find_last_of(" \n", end);
  return text.substr(blank + 1, end - blank);
}

std::string quoted(const std::string& path) {
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string line(const std::string& name, const std::string& text) { return fmt::format("{:<14}{}\n", name, text); }

std::string library_of(const std::pair<std::string, uint32_t>& client) {
  return client.first.empty() ? "a library of an earlier release" : "the library " + client.first;
}

}  // namespace

Releases look_for_releases() {
  Releases found;
  found.own = NVSHARE_VERSION;
  if (auto installation = Installation::of_this_program()) {
    auto library = installation->library();
    found.library = library ? *library : std::string(library.error().text);
    for (const Place& place : kPlaces) {
      const std::string path = installation->root + place.path;
      if (access(path.c_str(), X_OK) != 0) continue;
      found.installed.push_back({place.name, last_word(doctor::output_of(quoted(path) + " --version").value_or("")), path});
    }
  }
  auto link = find_scheduler();
  if (!link) {
    found.none_why = link.error().text;
    return found;
  }
  found.runtime_dir = link->runtime_directory;
  auto status = link->admin ? link->admin->status() : Result<protocol::admin::StatusReport>(error_format("%s", link->admin_error.c_str()));
  if (!status) {
    found.unknown_why = status.error().text;
    return found;
  }
  found.running = status->version;
  for (const auto& client : status->clients) ++found.clients[{client.library, client.protocol}];
  return found;
}

std::string text_of(const Releases& releases) {
  std::string text = line("nvsharectl", fmt::format("{}, protocol {} to {}", releases.own, protocol::kVersionMin, protocol::kVersionMax));
  std::string advice;
  if (!releases.library.empty()) text += line("library", releases.library);
  for (const PartRelease& part : releases.installed) {
    text += line(part.name, fmt::format("{} at {}", part.release.empty() ? "release unknown" : part.release, part.path));
    if (part.release != releases.own)
      advice += fmt::format("{} and nvsharectl {} belong to two releases: install all parts of one\n", part.path, releases.own);
  }
  if (releases.runtime_dir.empty()) return text + line("running", "none: " + releases.none_why) + advice;
  if (releases.running.empty())
    return text + line("running", fmt::format("a scheduler in {}, release unknown: {}", releases.runtime_dir, releases.unknown_why)) +
           advice;
  text += line("running", fmt::format("scheduler {} in {}", releases.running, releases.runtime_dir));
  for (const auto& [client, number] : releases.clients)
    text += line("", fmt::format("{} client{} with {}, protocol {}", number, number == 1 ? "" : "s", library_of(client), client.second));
  if (releases.running != releases.own)
    advice +=
        fmt::format("the scheduler that runs is {}: restart it for {} (systemctl restart nvshare-scheduler); programs go on meanwhile\n",
                    releases.running, releases.own);
  for (const auto& [client, number] : releases.clients) {
    if (client.first == releases.running) continue;
    advice += fmt::format("{} client{} {} until {}: the scheduler serves {} by protocol {}\n", number, number == 1 ? " keeps" : "s keep",
                          library_of(client), number == 1 ? "it ends" : "they end", number == 1 ? "it" : "them", client.second);
  }
  return text + advice;
}

int version_command() {
  fmt::print("{}", text_of(look_for_releases()));
  return 0;
}

}  // namespace nvshare::cli
