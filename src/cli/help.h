// What --help prints: CLI11's words less those of its own (`TEXT`, `INT:INT in [1 - 100]`, `{false}`), within a terminal's width. Elsewhere
// each description is one line, as tools/command-pages.py reads it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace nvshare::cli {

class Help : public CLI::Formatter {
 public:
  explicit Help(size_t columns) : columns_(columns) { column_width(kDescriptionsAt); }

  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;

 private:
  static constexpr size_t kDescriptionsAt = 30;

  const size_t columns_;  // 0: any number
};

}  // namespace nvshare::cli
