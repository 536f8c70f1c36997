// nvsharectl: people's front to nvshare.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/demo/demo_command.h"
#include "cli/run_command.h"
#include "cli/set_command.h"
#include "cli/status_command.h"
#include "protocol/admin.h"

namespace {

using nvshare::cli::RunOptions;

// CLI11 would take the program's own options for ours, so that the program is cut off first: it begins after "--", or at the first word
// that is neither an option of `run` nor the value of one.
std::vector<std::string> cut_program(std::vector<std::string>& words, const CLI::App& run) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--" || word.empty() || word[0] != '-') {
      const size_t first = word == "--" ? i + 1 : i;
      std::vector<std::string> program(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      return program;
    }
    const CLI::Option* option = run.get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Shares GPUs between unmodified CUDA programs.", "nvsharectl");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("nvsharectl ") + NVSHARE_VERSION);

  RunOptions options;
  CLI::App* run_app = app.add_subcommand("run", "Run a program under nvshare: nvsharectl run [options] [--] PROGRAM [arguments]");
  run_app->add_option("--gpu-memory-limit", options.gpu_memory_limit,
                      "GPU memory the program and its children may have, such as 8Gi or 512MiB");
  run_app->add_option(
      "--reserve-memory", options.reserve_memory,
      "GPU memory that the scheduler is to reserve for it on its GPU, such as 8Gi: refused where others have reserved too much; "
      "its limit as well");
  run_app
      ->add_option("--gpu-core-limit", options.gpu_core_limit,
                   "percent of each GPU's time that the program and its children may use, 1 to 100 (100: no limit)")
      ->check(CLI::Range(1, 100));
  run_app
      ->add_option("--priority", options.priority,
                   "-100 to 100, 0 by default: of programs that wait for a GPU, the higher goes first; nobody waits for ever")
      ->check(CLI::Range(nvshare::protocol::admin::kPriorityMin, nvshare::protocol::admin::kPriorityMax));
  run_app->add_option(
      "--gpu", options.gpu,
      "GPU index or UUID, a list of them (0,1), or 'all'; without it CUDA_VISIBLE_DEVICES counts, else the emptiest GPU is taken");
  run_app->add_option("--name", options.name, "name that 'status' shows for it; the program's by default");
  run_app->add_flag("!--no-gang", options.gang_turns, "on several GPUs: take turns on each by itself, not on all of them together");
  run_app->add_flag("--quiet", options.quiet, "no start line");

  bool json = false;
  CLI::App* status_app = app.add_subcommand("status", "GPUs, tenants and clients as the scheduler sees them");
  status_app->add_flag("--json", json, "the scheduler's own report, one line of JSON");

  std::vector<std::string> changes;
  CLI::App* set_app = app.add_subcommand("set",
                                         "Change a tenant's limits, or the scheduler's settings, at once: nvsharectl set train core=40 "
                                         "memory=8Gi; nvsharectl set scheduling_mode=auto");
  set_app
      ->add_option("changes", changes,
                   "a tenant's name or id, then core=PERCENT and memory=BYTES, or =none, and priority=-100..100; or SETTING=VALUE")
      ->required();

  nvshare::cli::demo::DemoOptions demo;
  CLI::App* demo_app = app.add_subcommand("demo", "Jobs that do not fit together take turns; compares with one after the other");
  demo_app->add_option("--jobs", demo.jobs, "how many, each needing three quarters of the GPU's memory (4)")->check(CLI::Range(2, 8));
  demo_app->add_flag("--json", demo.json, "the outcome as one line of JSON");
  demo_app->add_flag("--stand-in", demo.stand_in, "use the stand-in GPU even where there is a real one");
  demo_app->add_flag("!--no-paging", demo.paging, "leave out the comparison with demand paging");

  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "run") {
    std::vector<std::string> own(words.begin() + 1, words.end());
    options.program = cut_program(own, *run_app);
    words.resize(1);
    words.insert(words.end(), own.begin(), own.end());
  }
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 takes a vector
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : nvshare::cli::kExitUsage;
  }
  if (*run_app) {
    if (options.program.empty()) {
      fmt::print(stderr, "nvsharectl run: no program is named; for instance: nvsharectl run -- python3 train.py\n");
      return nvshare::cli::kExitUsage;
    }
    return nvshare::cli::run_command(options);
  }
  if (*demo_app) return nvshare::cli::demo::demo_command(demo);
  if (*set_app) return nvshare::cli::set_command(changes);
  return nvshare::cli::status_command(json);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {  // out of memory and the like: nothing here throws in ordinary use
    std::fprintf(stderr, "nvsharectl: %s\n", problem.what());
    return nvshare::cli::kExitCannotRun;
  }
}
