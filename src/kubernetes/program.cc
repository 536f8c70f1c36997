#include "kubernetes/program.h"

#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <list>

namespace nvshare::kubernetes {
namespace {

sigset_t end_signals(int also) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  if (also != 0) sigaddset(&ends, also);
  return ends;
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, const std::vector<SettingSpec>& specs, int argc, char** argv, settings::Texts* given) {
  std::list<std::string> values;  // stable addresses for CLI11
  std::vector<std::pair<const SettingSpec*, CLI::Option*>> options;
  for (const SettingSpec& spec : specs) {
    options.emplace_back(
        &spec, app.add_option(settings::flag_of(spec.name), values.emplace_back(), std::string(spec.help) + "; " + spec.accepted));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? EXIT_SUCCESS : kExitWrongUse;
  }
  auto value = values.begin();
  for (const auto& [spec, option] : options) {
    if (option->count() > 0) given->emplace_back(spec->name, *value);
    ++value;
  }
  return {};
}

std::string own_library() {
  char self[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  std::string folder(self, length > 0 ? static_cast<size_t>(length) : 0);
  folder.resize(std::min(folder.rfind('/'), folder.size()));
  for (const char* place : {"/../lib/libnvshare.so", "/../lib/nvshare/libnvshare.so", "/libnvshare.so"}) {
    if (access((folder + place).c_str(), R_OK) == 0) return folder + place;
  }
  return folder + "/../lib/libnvshare.so";
}

void begin_log(const char* program, const Settings& settings) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt(program));
  spdlog::set_level(spdlog::level::from_str(settings.log_level));
}

void keep_end_signals(int also) {
  const sigset_t ends = end_signals(also);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int wait_for_end(int also) {
  const sigset_t ends = end_signals(also);
  int signal = 0;
  sigwait(&ends, &signal);
  return signal;
}

}  // namespace nvshare::kubernetes
