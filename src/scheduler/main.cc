// nvshare-scheduler: decides which programs run on which GPU and when. See README.md.
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>

#include "base/fd.h"
#include "scheduler/daemon.h"
#include "scheduler/log.h"
#include "scheduler/settings.h"

namespace {

using namespace nvshare;
using namespace nvshare::scheduler;

constexpr int kExitWrongUse = 2;

struct CommandLine {
  std::string config = kSettingsFile;
  bool config_given = false;
  Texts texts;
};

constexpr size_t kConfigBytesMax = size_t{1} << 20;

// The file's text; a missing one is empty unless it was asked for. What is there and cannot be read is an error: its settings may be
// bounds.
Result<std::string> read_config(const CommandLine& line) {
  const FileDescriptor file(open(line.config.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT && !line.config_given) return std::string();
  std::string text;
  char part[4096];
  ssize_t length = -1;
  while (file && text.size() <= kConfigBytesMax && (length = read(file.get(), part, sizeof part)) > 0) {
    text.append(part, static_cast<size_t>(length));
  }
  if (length < 0) return error_format("cannot read %.200s: %s", line.config.c_str(), std::strerror(errno));
  if (length > 0) return error_format("%.200s is no settings file: it has more than %zu bytes", line.config.c_str(), kConfigBytesMax);
  return text;
}

// Each client takes a descriptor, its socket, and each process one more.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// What the scheduler knows of thousands of clients lies all over its heap, and each report goes over all of it: in pages of 4 KiB the
// processor has to look up a page for nearly each line that it fetches. Of the heap's beginning the addresses are taken at once, so that
// it can be of huge pages; memory comes with its use. What malloc would find out by itself later (mallopt(3), "dynamic") is said at once,
// as it finds out nothing any more once it is told. Where there are no huge pages, or it is not glibc's malloc, nothing changes.
void use_huge_pages() {
  constexpr size_t kMiB = size_t{1} << 20, kHuge = 2 * kMiB, kHeap = 256 * kMiB;
  constexpr int kOfItsOwn = 32 << 20;    // malloc's blocks from here on are no part of the heap
  constexpr int kGivesBack = 320 << 20;  // so much must be free at its end
  const auto end_before = reinterpret_cast<uintptr_t>(sbrk(0));
  mallopt(M_MMAP_THRESHOLD, kOfItsOwn);
  mallopt(M_TRIM_THRESHOLD, kGivesBack);
  mallopt(M_TOP_PAD, static_cast<int>(kHeap));
  void* const volatile block = std::malloc(kMiB);  // or the compiler leaves it out
  std::free(block);
  mallopt(M_TOP_PAD, static_cast<int>(kMiB));
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  if (end - end_before < kHeap) return;
  const uintptr_t begin = (end_before + kHuge - 1) / kHuge * kHuge;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

int serve(const CommandLine& line) {
  Result<std::string> file = read_config(line);
  if (!file) {
    std::fprintf(stderr, "nvshare-scheduler: %s\n", file.error().text);
    return kExitWrongUse;
  }
  Result<Settings> settings = load_settings(
      line.config, *file, [](const char* name) { return static_cast<const char*>(std::getenv(name)); }, line.texts);
  if (!settings) {
    std::fprintf(stderr, "nvshare-scheduler: %s\n", settings.error().text);
    return kExitWrongUse;
  }
  log_to_standard_error();
  // A log whose reader has gone, and a file lease (segment_maker.cc) that somebody breaks, must not end the daemon.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGIO, SIG_IGN);
  set_log_level(settings->log_level);
  raise_descriptor_limit();
  use_huge_pages();
  umask(022);
  Result<std::unique_ptr<Daemon>> daemon = Daemon::start(*settings);
  if (!daemon) {
    std::fprintf(stderr, "nvshare-scheduler: %s\n", daemon.error().text);
    return EXIT_FAILURE;
  }
  (*daemon)->stop_on_signals();
  (*daemon)->go_before_others();
  (*daemon)->run();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Decides which programs run on which GPU and when.\n"
      "Every flag below is also a variable (--log-level: NVSHARE_LOG_LEVEL) and a key of the settings file (log_level);\n"
      "the command line goes before the environment, the environment before the file."};
  app.set_version_flag("--version", NVSHARE_VERSION);
  CommandLine line;
  CLI::Option* config = app.add_option("--config", line.config, "settings file, TOML (" + line.config + ")");
  std::list<std::string> values;  // stable addresses for CLI11
  std::vector<std::pair<const SettingSpec*, CLI::Option*>> options;
  for (const SettingSpec& spec : setting_specs()) {
    CLI::Option* option = app.add_option(flag_of(spec.name), values.emplace_back(), spec.help + "; " + spec.accepted);
    if (spec.flag_alone != nullptr) option->expected(0, 1);
    options.emplace_back(&spec, option);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return app.exit(problem);  // --help, --version
    const std::vector<std::string> unknown = app.remaining();
    if (unknown.empty()) {
      std::string text = problem.what();
      if (const size_t at = text.find(": 1 required "); at != std::string::npos) text = text.substr(0, at) + ": a value is missing";
      std::fprintf(stderr, "nvshare-scheduler: %s; see 'nvshare-scheduler --help'\n", text.c_str());
    } else {
      std::fprintf(stderr, "nvshare-scheduler: '%s' is no flag; 'nvshare-scheduler --help' lists them\n", unknown.front().c_str());
    }
    return kExitWrongUse;
  }
  line.config_given = config->count() > 0;
  auto value = values.begin();
  for (const auto& [spec, option] : options) {
    bool alone = value->empty() && spec->flag_alone != nullptr;
    if (option->count() > 0) line.texts.emplace_back(spec->name, alone ? spec->flag_alone : *value);
    ++value;
  }
  return serve(line);
}
