// nvsharectl: people's front to nvshare.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "cli/columns.h"
#include "cli/convert/convert_command.h"
#include "cli/demo/demo_command.h"
#include "cli/doctor/doctor_command.h"
#include "cli/help.h"
#include "cli/kill_command.h"
#include "cli/logs_command.h"
#include "cli/replay_command.h"
#include "cli/run_command.h"
#include "cli/set_command.h"
#include "cli/status_command.h"
#include "cli/top/top_command.h"
#include "cli/trace_command.h"
#include "cli/version_command.h"
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
    const bool is_followed = i + 1 < words.size() && words[i + 1] != "--";  // else its value is missing
    if (option != nullptr && option->get_items_expected_max() > 0 && is_followed) ++i;
  }
  return {};
}

// How many letters have to be changed, added or left out.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Of a few letters few may be others; or it is the name's beginning.
bool may_be_meant(const std::string& word, const std::string& name) {
  const size_t others = distance(word, name);
  return (others <= 2 && 2 * others < std::max(word.size(), name.size())) || (word.size() > 3 && name.starts_with(word));
}

// "accepted: a, b, c", and the one that `word` may have been meant for.
std::string accepted(const std::vector<std::string>& names, const std::string& word) {
  std::string list;
  std::string nearest;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + name;
    if (may_be_meant(word, name) && (nearest.empty() || distance(word, name) < distance(word, nearest))) nearest = name;
  }
  return "accepted: " + list + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) names.push_back(option->get_name());
  return names;
}

// As CLI11's range, in words of ours.
CLI::Validator between(const char* type, double least, double most) {
  CLI::Validator validator(fmt::format("{} in [{} - {}]", type, least, most));
  validator.operation([least, most, is_whole = std::string(type) == "INT"](const std::string& text) {
    const bool fits = is_whole ? static_cast<bool>(nvshare::parse_integer(text, static_cast<int64_t>(least), static_cast<int64_t>(most)))
                               : static_cast<bool>(nvshare::parse_decimal(text, least, most));
    return fits ? std::string() : fmt::format("'{}' is not accepted; accepted: {} to {}", text, least, most);
  });
  return validator;
}

// As a script gives it whose variable is not set.
CLI::Validator not_empty() {
  CLI::Validator validator{std::string()};
  validator.operation([](const std::string& text) {
    return text.find_first_not_of(" \t\n") == std::string::npos ? "'" + text + "' is empty" : std::string();
  });
  return validator;
}

// The first word that looks like an option and is none; empty: all are.
std::string unknown_option(const CLI::App& command, const std::vector<std::string>& words) {
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    if (words[i].size() < 2 || words[i][0] != '-') continue;
    const CLI::Option* option = command.get_option_no_throw(words[i].substr(0, words[i].find('=')));
    const bool is_short = words[i][1] != '-' && command.get_option_no_throw(words[i].substr(0, 2)) != nullptr;
    if (option == nullptr && !is_short) return words[i];
    if (option != nullptr && option->get_items_expected_max() > 0 && words[i].find('=') == std::string::npos) ++i;
  }
  return {};
}

// What CLI11 says, in words of ours.
std::string in_plain_words(std::string text) {
  constexpr char kNotConverted[] = "Could not convert: ", kMissing[] = " missing", kRequired[] = ": 1 required ",
                 kTwice[] = ": At Most 1 required but received ";
  if (text.rfind(kNotConverted, 0) == 0) return text.substr(sizeof kNotConverted - 1) + " is not understood";
  const size_t required = text.find(kRequired), twice = text.find(kTwice);
  if (required != std::string::npos && text.ends_with(kMissing)) return text.substr(0, required) + ": a value is missing";
  if (twice != std::string::npos)
    return fmt::format("{} is given {} times; accepted: once", text.substr(0, twice), text.substr(twice + sizeof kTwice - 1));
  return text;
}

// A wrong use, in one sentence: the thing, what is accepted, where more is said.
std::string explained(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error) {
  const CLI::App* command = nullptr;
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!words.empty() && one->get_name() == words[0]) command = one;
  }
  if (words.empty()) return fmt::format("nvsharectl: no command is named; {}; see 'nvsharectl --help'", accepted(commands_of(app), ""));
  if (command == nullptr && words[0][0] != '-') {
    std::vector<std::string> names = commands_of(app);
    names.emplace_back("--help");
    return fmt::format("nvsharectl: there is no command '{}'; {}; see 'nvsharectl --help'", words[0], accepted(names, words[0]));
  }
  const CLI::App& asked = command != nullptr ? *command : app;
  const std::string name = command != nullptr ? "nvsharectl " + command->get_name() : "nvsharectl";
  std::string text = in_plain_words(error.what());
  // "The following arguments were not expected: --jsn now"; without a command it is only that which is said to be missing.
  constexpr char kExtra[] = "not expected: ";
  const size_t at = text.find(kExtra);
  std::string extra = at != std::string::npos ? text.substr(at + sizeof kExtra - 1) : command == nullptr ? words[0] : std::string();
  extra = extra.substr(0, extra.find(' '));
  if (command != nullptr && (!extra.empty() || text.ends_with(" is required"))) {
    if (const std::string unknown = unknown_option(*command, words); !unknown.empty()) extra = unknown;
  }
  const std::string wanted = text.substr(0, text.find(" is required"));
  const CLI::Option* positional = extra.empty() && wanted.size() < text.size() ? asked.get_option_no_throw(wanted) : nullptr;
  if (positional != nullptr && positional->get_positional()) {
    text = fmt::format("nothing is named; accepted: {}", positional->get_description());
  } else if (!extra.empty()) {
    text = fmt::format("'{}' is unknown here; {}", extra, accepted(options_of(asked), extra));
  } else {
    for (const CLI::Option* option : asked.get_options()) {
      if (text.find(option->get_name()) == std::string::npos || option->get_name() == "--help") continue;
      text += fmt::format("; {}: {}", option->get_name(), option->get_description());
      break;
    }
  }
  return fmt::format("{}: {}; see '{} --help'", name, text, name);
}

// What the program may have.
void add_limits_of_run(CLI::App& run_app, RunOptions& options) {
  run_app
      .add_option("--gpu-memory-limit", options.gpu_memory_limit, "GPU memory the program and its children may have, such as 8Gi or 512MiB")
      ->option_text("SIZE")
      ->check(not_empty());
  run_app
      .add_option(
          "--reserve-memory,--reserve", options.reserve_memory,
          "GPU memory that the scheduler is to reserve for it on its GPU, such as 8Gi: refused where others have reserved too much; "
          "its limit as well")
      ->option_text("SIZE")
      ->check(not_empty());
  run_app
      .add_option("--gpu-core-limit", options.gpu_core_limit,
                  "percent of each GPU's time that the program and its children may use, and that is reserved for them, 1 to 100 "
                  "(100: no limit)")
      ->option_text("PERCENT")
      ->check(between("INT", 1, 100));
  run_app
      .add_option("--gpu-core-ceiling", options.gpu_core_ceiling,
                  "percent of each GPU's time that they may use at most, with nothing reserved, 1 to 100 (100: no ceiling)")
      ->option_text("PERCENT")
      ->check(between("INT", 1, 100));
  run_app
      .add_option("--priority", options.priority,
                  "-100 to 100, 0 by default: of programs that wait for a GPU, the higher goes first; nobody waits for ever")
      ->option_text("NUMBER")
      ->check(between("INT", nvshare::protocol::admin::kPriorityMin, nvshare::protocol::admin::kPriorityMax));
}

CLI::App* add_run(CLI::App& app, RunOptions& options) {
  CLI::App* run_app = app.add_subcommand("run", "Run a program under nvshare: nvsharectl run [options] [--] PROGRAM [arguments]");
  add_limits_of_run(*run_app, options);
  run_app
      ->add_option(
          "--gpu", options.gpu,
          "GPU index or UUID, a list of them (0,1), or 'all'; without it CUDA_VISIBLE_DEVICES counts, else the emptiest GPU is taken")
      ->option_text("GPU")
      ->check(not_empty());
  run_app->add_option("--name", options.name, "name that 'status' shows for it; the program's by default")
      ->option_text("NAME")
      ->check(not_empty());
  run_app
      ->add_option("--trust-group", options.trust_group,
                   "where the scheduler looks after MPS: share a daemon only with your programs that name this group as well; without "
                   "it NVSHARE_TRUST_GROUP counts, else with those that name none")
      ->option_text("NAME");
  run_app->add_flag("!--no-gang", options.gang_turns, "on several GPUs: take turns on each by itself, not on all of them together");
  run_app
      ->add_option("--trace", options.trace,
                   "the file to write what the scheduler did meanwhile to, for ui.perfetto.dev; the programs of others are in it, too")
      ->option_text("FILE")
      ->check(not_empty());
  run_app->add_flag("--wait", options.wait, "begin when no program runs or waits on the GPU; of several GPUs, on one that is free");
  run_app
      ->add_option("--after", options.after,
                   "begin when this tenant has ended: its name or id; of a Slurm job, job=NUMBER; may be repeated")
      ->option_text("TENANT")
      ->allow_extra_args(false)
      ->check(not_empty());
  run_app->add_option("--timeout", options.timeout, "wait so long at most, such as 90s or 10min; then the exit code is 124")
      ->option_text("TIME")
      ->check(not_empty());
  run_app->add_flag("--quiet", options.quiet, "no start line, and none while the program waits for a turn");
  return run_app;
}

// What runs where a command is named, and has its options.
using Commands = std::vector<std::pair<const CLI::App*, std::function<int()>>>;

void add_status(CLI::App& app, Commands& commands) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("status", "GPUs, tenants and clients as the scheduler sees them");
  const auto wide = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "the scheduler's own report, one line of JSON");
  command->add_flag("--wide", *wide, "all columns, however narrow the terminal; into a pipe or a file that is so without it");
  commands.emplace_back(command, [json, wide] { return nvshare::cli::status_command(*json, *wide); });
}

void add_top(CLI::App& app, Commands& commands) {
  const auto top = std::make_shared<nvshare::cli::top::TopOptions>();
  CLI::App* command = app.add_subcommand("top", "Live: who has the GPUs, who waits for what, where the memory is; keys set limits");
  command->add_option("--interval", top->interval_s, "seconds between two looks, 0.1 to 3600 (1)")
      ->option_text("SECONDS")
      ->check(between("FLOAT", 0.1, 3600));
  command->add_flag("--once", top->once, "one picture as text, for scripts and logs");
  command->add_option("--columns", top->columns, "width of that picture, 40 to 1000; the terminal's by default, else 120")
      ->option_text("NUMBER")
      ->check(between("INT", 40, 1000));
  command->add_flag("!--no-colour,!--no-color", top->colour, "without colours (NO_COLOR does the same)");
  commands.emplace_back(command, [top] { return nvshare::cli::top::top_command(*top); });
}

void add_trace(CLI::App& app, Commands& commands) {
  const auto trace = std::make_shared<nvshare::cli::TraceOptions>();
  CLI::App* command =
      app.add_subcommand("trace", "What the scheduler did in the last minute, or a recording, as a picture for ui.perfetto.dev");
  command
      ->add_option(
          "recording", trace->recording,
          "the file that 'nvshare-scheduler --trace FILE' wrote, or still writes; without it, the last minute of the scheduler that runs")
      ->check(not_empty());
  command->add_option("--last", trace->last_s, "of the scheduler that runs: only so many seconds back, 0.001 to 60")
      ->option_text("SECONDS")
      ->check(between("FLOAT", 0.001, 60));
  command
      ->add_option("--output,-o", trace->output,
                   "the file to write, JSON in Chrome's trace format; '-': standard output (nvshare-trace.json)")
      ->option_text("FILE")
      ->check(not_empty());
  commands.emplace_back(command, [trace] { return nvshare::cli::trace_command(*trace); });
}

void add_replay(CLI::App& app, Commands& commands) {
  const auto replay = std::make_shared<nvshare::cli::ReplayOptions>();
  CLI::App* command = app.add_subcommand("replay", "Whether this release decides as a recording says, and where it first does not");
  command->add_option("recording", replay->recording, "the file that 'nvshare-scheduler --trace FILE' wrote, or still writes")
      ->required()
      ->check(not_empty());
  command->add_flag("--json", replay->json, "what is found as one line of JSON");
  commands.emplace_back(command, [replay] { return nvshare::cli::replay_command(*replay); });
}

void add_set(CLI::App& app, Commands& commands) {
  const auto changes = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "set", "Change a tenant's limits, or settings of the scheduler, at once: set train core=40; set scheduling_mode=auto");
  command
      ->add_option("changes", *changes,
                   "a tenant's name or id, then core=PERCENT, ceiling=PERCENT and memory=BYTES, or =none, priority=-100..100 and "
                   "sharing=together, turns, auto or node; or SETTING=VALUE")
      ->required();
  commands.emplace_back(command, [changes] { return nvshare::cli::set_command(*changes); });
}

// A command about one tenant. Its name or id.
std::shared_ptr<std::string> add_tenant(CLI::App* command) {
  auto tenant = std::make_shared<std::string>();
  command->add_option("tenant", *tenant, "a tenant's name or id, as 'status' shows them; of a Slurm job, job=NUMBER")
      ->required()
      ->check(not_empty());
  return tenant;
}

void add_turns_of_tenants(CLI::App& app, Commands& commands) {
  CLI::App* pause = app.add_subcommand("pause", "A tenant's turns end and none begins, until 'resume'; its memory gives way to others'");
  commands.emplace_back(pause, [tenant = add_tenant(pause)] { return nvshare::cli::pause_command(*tenant, true); });
  CLI::App* resume = app.add_subcommand("resume", "A tenant that was paused goes on");
  commands.emplace_back(resume, [tenant = add_tenant(resume)] { return nvshare::cli::pause_command(*tenant, false); });
  CLI::App* release =
      app.add_subcommand("release", "A tenant's turns end now; it gets new ones when it asks for them, and others go before");
  commands.emplace_back(release, [tenant = add_tenant(release)] { return nvshare::cli::release_command(*tenant); });
}

void add_kill(CLI::App& app, Commands& commands) {
  CLI::App* command = app.add_subcommand("kill", "A signal to all processes of a tenant");
  const auto tenant = add_tenant(command);
  const auto signal = std::make_shared<std::string>("TERM");
  command->add_option("--signal,-s", *signal, "TERM (by default), INT, HUP, QUIT, KILL, USR1, USR2, STOP or CONT")->option_text("SIGNAL");
  commands.emplace_back(command, [tenant, signal] { return nvshare::cli::kill_command(*tenant, *signal); });
}

void add_logs(CLI::App& app, Commands& commands) {
  const auto logs = std::make_shared<nvshare::cli::LogsOptions>();
  CLI::App* command = app.add_subcommand("logs", "What the scheduler has logged, wherever its log goes");
  command->add_option("--lines,-n", logs->lines, "the last so many lines, 0 to 1000000 (50)")
      ->option_text("NUMBER")
      ->check(between("INT", 0, 1'000'000));
  command->add_flag("--follow,-f", logs->follow, "and what comes, until Ctrl-C");
  commands.emplace_back(command, [logs] { return nvshare::cli::logs_command(*logs); });
}

void add_doctor(CLI::App& app, Commands& commands) {
  const auto doctor = std::make_shared<nvshare::cli::doctor::DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "What keeps programs from sharing GPUs here, what it means and what to do");
  command->add_option("program", doctor->program, "a program that is to be run: can the library be preloaded into it?")->check(not_empty());
  command->add_flag("--json", doctor->json, "the findings as one line of JSON");
  command->add_option("--bundle", doctor->bundle, "a new file for a bug report: findings, status, trace and log, without names and keys")
      ->option_text("FILE")
      ->check(not_empty());
  commands.emplace_back(command, [doctor] { return nvshare::cli::doctor::doctor_command(*doctor); });
}

void add_convert(CLI::App& app, Commands& commands) {
  const auto options = std::make_shared<nvshare::cli::convert::ConvertOptions>();
  CLI::App* command = app.add_subcommand(
      "convert", "Kubernetes manifests that ask for GPUs by resources of a device plugin, rewritten to claims (mode: dra)");
  command
      ->add_option("files", options->files,
                   "manifests in YAML or JSON, for nvshare's device plugin, NVIDIA's or HAMi; '-': standard input. What is not as it was "
                   "is told on standard error")
      ->required()
      ->check(not_empty());
  command->add_option("--memory", options->memory, "for each GPU that no memory is asked of, such as 4Gi; without it, the whole GPU's")
      ->option_text("SIZE")
      ->check(not_empty());
  command->add_option("--cores", options->cores, "percent of each GPU that no compute is asked of, 1 to 100; without it, 100")
      ->option_text("PERCENT")
      ->check(between("INT", 1, 100));
  command->add_option("--memory-unit", options->memory_unit, "what one nvshare.com/gpu-memory is: the nodes' NVSHARE_GPU_MEMORY_UNIT (1Gi)")
      ->option_text("SIZE");
  command->add_option("--device-class", options->device_class, "the DeviceClass of the claims (gpu.nvshare.com)")->option_text("NAME");
  command->add_option("--output,-o", options->output, "the file to write; '-': standard output (-)")
      ->option_text("FILE")
      ->check(not_empty());
  commands.emplace_back(command, [options] { return nvshare::cli::convert::convert_command(*options); });
}

void add_demo(CLI::App& app, Commands& commands) {
  const auto demo = std::make_shared<nvshare::cli::demo::DemoOptions>();
  CLI::App* command = app.add_subcommand("demo", "Jobs that do not fit together take turns; compares with one after the other");
  command->add_option("--jobs", demo->jobs, "how many, 2 to 8, each needing three quarters of the GPU's memory (4)")
      ->option_text("NUMBER")
      ->check(between("INT", 2, 8));
  command->add_flag("--json", demo->json, "the outcome as one line of JSON");
  command->add_flag("--stand-in", demo->stand_in, "use the stand-in GPU even where there is a real one");
  command->add_flag("!--no-paging", demo->paging, "leave out the comparison with demand paging");
  commands.emplace_back(command, [demo] { return nvshare::cli::demo::demo_command(*demo); });
}

int run(int argc, char** argv) {
  CLI::App app("Shares GPUs between unmodified CUDA programs.", "nvsharectl");
  app.formatter(std::make_shared<nvshare::cli::Help>(nvshare::cli::columns_of_output()));
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("nvsharectl ") + NVSHARE_VERSION);

  RunOptions options;
  const CLI::App* run_app = add_run(app, options);
  Commands commands;  // the others
  add_status(app, commands);
  add_top(app, commands);
  add_trace(app, commands);
  add_replay(app, commands);
  add_set(app, commands);
  add_turns_of_tenants(app, commands);
  add_kill(app, commands);
  add_logs(app, commands);
  add_doctor(app, commands);
  add_convert(app, commands);
  commands.emplace_back(app.add_subcommand("version", "Releases of nvsharectl, the scheduler and the libraries that programs have"),
                        nvshare::cli::version_command);
  add_demo(app, commands);

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
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "{}\n", explained(app, words, error));
    return nvshare::cli::kExitUsage;
  }
  if (*run_app) {
    if (options.program.empty()) {
      fmt::print(stderr, "nvsharectl run: no program is named; for instance: nvsharectl run -- python3 train.py\n");
      return nvshare::cli::kExitUsage;
    }
    const int code = nvshare::cli::run_command(options);
    const std::vector<std::string> names = commands_of(app);
    if (code == nvshare::cli::kExitNotFound && std::find(names.begin(), names.end(), options.program[0]) != names.end())
      fmt::print(stderr, "nvshare: there is a command of that name: nvsharectl {}\n", fmt::join(options.program, " "));
    return code;
  }
  const auto named = std::find_if(commands.begin(), commands.end(), [](const auto& command) { return command.first->parsed(); });
  return named->second();  // there is one: app requires it
}

// What was printed may still be in memory, and a full disk be found only now.
int printed(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "nvsharectl: cannot write to standard output: %s\n", strerror(errno));
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return printed(run(argc, argv));
  } catch (const std::exception& problem) {  // of fmt, where a file takes no more; out of memory and the like
    if (std::ferror(stdout) != 0) return printed(0);
    std::fprintf(stderr, "nvsharectl: %s\n", problem.what());
    return nvshare::cli::kExitCannotRun;
  }
}
