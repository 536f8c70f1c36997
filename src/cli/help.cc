#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/columns.h"

namespace nvshare::cli {
namespace {

constexpr size_t kRoomMin = 40;  // of a description, however narrow the terminal is

}  // namespace

std::string Help::make_usage(const CLI::App* app, std::string name) const {
  if (app->get_name() == "run") return "Usage: nvsharectl run [options] [--] PROGRAM [arguments]\n";
  return CLI::Formatter::make_usage(app, name);
}

std::string Help::make_option_name(const CLI::Option* option, bool is_positional) const {
  std::string name = CLI::Formatter::make_option_name(option, is_positional);
  for (size_t at; (at = name.find("{false}")) != std::string::npos;) name.erase(at, sizeof "{false}" - 1);
  return name;
}

std::string Help::make_option_opts(const CLI::Option* option) const {
  return option->get_positional() || option->get_option_text().empty() ? std::string() : " " + option->get_option_text();
}

std::string Help::make_option_desc(const CLI::Option* option) const {
  return wrapped(option->get_description(), columns_ == 0 ? 0 : std::max(kRoomMin, columns_ - std::min(columns_, kDescriptionsAt)));
}

std::string Help::make_subcommand(const CLI::App* command) const {
  std::string description = command->get_description();
  if (columns_ > 0) description = wrapped(description, std::max(kRoomMin, columns_ - std::min(columns_, kDescriptionsAt)));
  std::stringstream line;
  CLI::detail::format_help(line, command->get_display_name(true), description, kDescriptionsAt);
  return line.str();
}

std::string Help::make_description(const CLI::App* app) const { return wrapped(CLI::Formatter::make_description(app), columns_); }

}  // namespace nvshare::cli
