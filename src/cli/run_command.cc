#include "cli/run_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "base/fd.h"
#include "base/parse.h"
#include "base/printable.h"
#include "cli/environment.h"
#include "cli/gpu_choice.h"
#include "cli/mps_directory.h"
#include "cli/output_file.h"
#include "cli/process.h"
#include "cli/scheduler_link.h"
#include "cli/set_command.h"
#include "cli/trace_command.h"
#include "cli/turn_wait.h"
#include "cli/units.h"
#include "cli/wait_to_start.h"
#include "protocol/admin.h"
#include "protocol/paths.h"
#include "protocol/trust_group.h"

namespace nvshare::cli {
namespace {

namespace admin = protocol::admin;

constexpr char kVisibleDevices[] = "CUDA_VISIBLE_DEVICES";
constexpr char kMpsDirectory[] = "CUDA_MPS_PIPE_DIRECTORY";
constexpr char kMemoryLimit[] = "NVSHARE_GPU_MEMORY_LIMIT";

template <typename... Arguments>
void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  fmt::print(stderr, "nvshare: {}\n", fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::string short_name(const std::string& program) { return program.substr(program.find_last_of('/') + 1); }

struct Limit {
  uint64_t bytes = 0;  // 0 = none
  std::string set_by;
  uint64_t reserved = 0;
};

// The lowest of the flags and what the environment already says. All are checked.
Result<Limit> limit_of(const RunOptions& options, const Environment& environment) {
  Limit lowest;
  auto take = [&lowest](const char* name, const std::string& text) -> Result<uint64_t> {
    auto bytes = parse_bytes(text);
    if (!bytes) return error_format("%s: %s", name, bytes.error().text);
    if (*bytes > 0 && (lowest.bytes == 0 || *bytes < lowest.bytes)) {
      lowest.bytes = *bytes;
      lowest.set_by = name;
    }
    return *bytes;
  };
  if (auto found = environment.find(kMemoryLimit); found != environment.end() && !found->second.empty()) {
    auto bytes = take(kMemoryLimit, found->second);
    if (!bytes) return bytes.error();
    if (*bytes > 0 && !is_memory_limit(*bytes))
      return error_format("%s: '%.60s'; %s", kMemoryLimit, found->second.c_str(), kMemoryLimitAccepted);
  }
  const auto take_option = [&take](const char* name, const std::string& text) -> Result<uint64_t> {
    auto bytes = take(name, text);
    if (bytes && !is_memory_limit(*bytes)) return error_format("%s: '%.60s'; %s", name, text.c_str(), kMemoryLimitAccepted);
    return bytes;
  };
  if (!options.gpu_memory_limit.empty()) {
    if (auto ok = take_option("--gpu-memory-limit", options.gpu_memory_limit); !ok) return ok.error();
  }
  if (!options.reserve_memory.empty()) {
    auto reserved = take_option("--reserve-memory", options.reserve_memory);
    if (!reserved) return reserved.error();
    lowest.reserved = *reserved;
  }
  return lowest;
}

// Of the flag, else of the variable; empty: none.
Result<std::string> trust_group_of(const RunOptions& options, const Environment& environment) {
  const auto variable = environment.find(protocol::kTrustGroupVariable);
  if (!options.trust_group && (variable == environment.end() || variable->second.empty())) return std::string();
  std::string name = options.trust_group ? *options.trust_group : variable->second;
  if (protocol::is_trust_group(name)) return name;
  return error_format("%s: '%.60s' is no name of a trust group; accepted: %s",
                      options.trust_group ? "--trust-group" : protocol::kTrustGroupVariable, printable(name.substr(0, 60)).c_str(),
                      protocol::kTrustGroupForm);
}

Result<GpuChoice> gpu_of(const RunOptions& options, const Environment& environment, SchedulerLink& link) {
  const auto visible = environment.find(kVisibleDevices);
  const bool own_choice = options.gpu.empty() && visible != environment.end();
  if (own_choice && !link.admin) return GpuChoice{"", describe_visible({}, visible->second)};
  if (!link.admin) {
    if (options.gpu.empty() || options.gpu == "all") return GpuChoice{"", "GPU as the program chooses"};
    return GpuChoice{options.gpu, "GPU " + options.gpu};
  }
  auto status = link.admin->status();
  if (!status) return status.error();
  if (own_choice) return GpuChoice{"", describe_visible(*status, visible->second)};
  return options.gpu.empty() ? Result<GpuChoice>(choose_emptiest(*status)) : choose_named(*status, options.gpu);
}

// From the look at who is where until the scheduler knows of this run, so that the next one counts it. Not for longer than a moment: one
// that was stopped in it holds up nobody.
FileDescriptor begin_placing(const SchedulerLink& link) {
  constexpr std::chrono::milliseconds kPatience(2000), kPause(5);
  if (!link.admin) return {};
  FileDescriptor folder(open((link.runtime_directory + "/admin").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (folder && flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kPause);
  return folder;
}

// UUIDs of those that the program will see; none: they cannot be told.
std::vector<std::string> gpus_seen(const RunOptions& options, const Environment& environment, const GpuChoice& chosen,
                                   SchedulerLink& link) {
  auto status = link.admin->status();
  if (!status) return {};
  const auto visible = environment.find(kVisibleDevices);
  const bool own_choice = options.gpu.empty() && visible != environment.end();
  auto seen = gpus_listed(*status, own_choice ? visible->second : chosen.visible_devices.empty() ? "all" : chosen.visible_devices);
  return seen ? *seen : std::vector<std::string>();
}

}  // namespace

std::string left_out(const RunOptions& options) {
  return (options.name.empty() ? "" : "--name " + printable(options.name) + " is not taken, ") +
         std::string("limits come from the environment alone");
}

namespace {

// We are the root of the tenant's process tree, so that the tenant lives until we have asked about it. An error: what was to be reserved is
// not.
Result<std::optional<uint64_t>> register_tenant(SchedulerLink& link, const Limit& limit, const std::vector<std::string>& gpus,
                                                const RunOptions& options) {
  using Tenant = std::optional<uint64_t>;
  if (!link.admin) {
    say("{}: {}", left_out(options), link.admin_error);
    return Tenant();
  }
  const std::string name = options.name.empty() ? short_name(options.program.front()) : options.name;
  auto line =
      link.admin->ask(admin::TenantRequest{getpid(), name, static_cast<int64_t>(limit.bytes), options.gang_turns, options.gpu_core_limit,
                                           options.priority, static_cast<int64_t>(limit.reserved), options.gpu_core_ceiling, gpus});
  auto tenant = line ? admin::decode_tenant(*line) : Result<uint64_t>(line.error());
  if (tenant) return Tenant(*tenant);
  if (limit.reserved > 0) return error_format("--reserve-memory: %s", tenant.error().text);
  say("cannot register this run with the scheduler, so that it appears by its process: {}", tenant.error().text);
  return Tenant();
}

// At the program's end: whether the scheduler ever saw a client of this tenant, or was asked about the GPU, as by nvidia-smi. Nothing when
// it cannot be told.
std::optional<bool> was_seen(SchedulerLink& link, uint64_t tenant) {
  auto status = link.admin->status();
  if (!status) return std::nullopt;
  for (const auto& report : status->tenants) {
    if (report.id == tenant) return report.clients_ever > 0 || report.has_asked;
  }
  return std::nullopt;
}

void explain_no_client(const std::string& path) {
  switch (kind_of_program(path)) {
    case ProgramKind::kStatic:
      say("no CUDA call of this program was seen: {} is statically linked, so that no library can be preloaded into it", path);
      return;
    case ProgramKind::kPrivileged:
      say("no CUDA call of this program was seen: {} is setuid or has file capabilities, and the loader ignores LD_PRELOAD for such "
          "programs",
          path);
      return;
    case ProgramKind::kOrdinary:
      break;
  }
  say("no CUDA call of this program was seen; it ran without nvshare. Likely causes: it uses no GPU (check that its framework finds CUDA "
      "and a GPU), "
      "it "
      "starts its GPU work in a container, through sudo or on another machine, it clears LD_PRELOAD, or it ended before its first CUDA "
      "call");
}

void say_start_line(const GpuChoice& gpu, const Limit& limit, const SchedulerLink& link, const std::string& mps) {
  say("{}, memory limit {}, scheduler {} ({}){}", gpu.description,
      limit.bytes == 0 ? std::string("none") : fmt::format("{} (by {})", format_bytes(limit.bytes), limit.set_by), link.runtime_directory,
      link.started ? "started for you"
      : link.own   ? "yours"
                   : "the machine's",
      mps);
}

// A directory that the user set is the user's business, so that a trust group would not hold. One that an outer `nvsharectl run` set is
// ours.
Result<void> check_mps_directory(const std::string& trust_group, const SchedulerLink& link, Environment& environment) {
  const auto set = environment.find(kMpsDirectory);
  if (trust_group.empty() || set == environment.end()) return {};
  if (set->second.starts_with(link.runtime_directory + "/mps/")) {
    environment.erase(set);
    return {};
  }
  return error_format("trust group %s: %s is set already, to '%.150s', and says which daemon the program uses; accepted: one of both",
                      trust_group.c_str(), kMpsDirectory, printable(set->second).c_str());
}

// Whether the program is to be attached to an MPS daemon of the scheduler's.
bool share_by_mps(const std::string& trust_group, const SchedulerLink& link, Environment& environment) {
  if (environment.contains(kMpsDirectory)) return false;
  const MpsDirectory mps = ask_for_mps(link.runtime_directory, trust_group);
  if (!mps.refusal.empty()) say("without MPS: {}", mps.refusal);
  if (mps.directory.empty()) return false;
  environment[kMpsDirectory] = mps.directory;
  return true;
}

constexpr int64_t kFetchTraceMs = 15'000;  // the scheduler remembers a minute

Result<std::unique_ptr<LiveTrace>> begin_trace(const std::string& file, const SchedulerLink& link) {
  if (file.empty()) return std::unique_ptr<LiveTrace>();
  if (auto possible = check_output(file); !possible) return error_format("--trace: %s", possible.error().text);
  auto admin = AdminConnection::open(link.runtime_directory);
  if (!admin) return error_format("--trace: only a scheduler that answers us tells what it does: %s", admin.error().text);
  auto trace = std::make_unique<LiveTrace>(std::move(*admin), 1);
  if (auto ok = trace->fetch(); !ok) return error_format("--trace: %s", ok.error().text);
  return trace;
}

void end_trace(LiveTrace& trace, const std::string& file) {
  if (auto ok = trace.fetch(); !ok) say("--trace: the end is missing: {}", ok.error().text);
  auto written = write_picture(trace.picture(), file);
  say("{}", written ? *written : written.error().text);
}

// Fetches what is to be traced and tells of waits meanwhile.
Result<int> run_program(const RunOptions& options, const Environment& environment, const SchedulerLink& link,
                        std::optional<uint64_t> tenant, LiveTrace* trace) {
  std::optional<TurnWaitWatch> watch;
  if (!options.quiet && (tenant || !link.admin)) watch.emplace(link.runtime_directory, tenant);
  Meanwhile meanwhile;
  meanwhile.first_ms = watch ? TurnWaitWatch::kFirstMs : kFetchTraceMs;
  int64_t until_fetch_ms = kFetchTraceMs - meanwhile.first_ms;
  if (watch || trace != nullptr) {
    meanwhile.act = [&] {
      if (trace != nullptr && until_fetch_ms <= 0) {
        (void)trace->fetch();  // what failed is tried again
        until_fetch_ms = kFetchTraceMs;
      }
      const int64_t again_ms = watch ? watch->look() : kFetchTraceMs;
      until_fetch_ms -= again_ms;
      return again_ms;
    };
  }
  return run_and_forward_signals(options.program, environment, meanwhile);
}

int fail(int code, const Error& error) {
  say("{}", error.text);
  return code;
}

// Which option only a scheduler that answers us can serve, and why.
std::optional<std::string> needs_an_answer(const RunOptions& options, const Limit& limit) {
  if (options.gpu_core_limit < 100 || options.gpu_core_ceiling < 100)
    return fmt::format("{}: only a scheduler that answers us can hold a program to it",
                       options.gpu_core_limit < 100 ? "--gpu-core-limit" : "--gpu-core-ceiling");
  if (limit.reserved > 0) return "--reserve-memory: only a scheduler that answers us can reserve anything";
  if (options.priority != 0) return "--priority: only a scheduler that answers us can be told of it";
  return std::nullopt;
}

// What there is in place of a program that resolve_program() does not find, and what to do.
std::string why_no_program(const std::string& program) {
  struct stat status {};
  const bool is_there = stat(program.c_str(), &status) == 0;
  if (is_there && S_ISREG(status.st_mode)) {
    const bool is_path = program.find('/') != std::string::npos;
    const std::string there =
        is_path ? "'" + program + "' is not executable" : "there is no program '" + program + "' in PATH, only a file";
    const bool is_python = program.ends_with(".py");
    return there + "; name what runs it" +
           (is_python ? ": python3 " + program
            : is_path ? ", or chmod +x it"
                      : ", or its path: ./" + program);
  }
  if (is_there && S_ISDIR(status.st_mode)) return "'" + program + "' is a directory; accepted: a program, by its path or its name in PATH";
  return "there is no program '" + program + "'; accepted: its path, or a name that is found in PATH";
}

}  // namespace

int run_command(const RunOptions& options) {
  const std::string& program = options.program.front();
  Environment environment = current_environment();
  if (auto hint = wrapper_hint(program)) {
    say("{}", *hint);
    return kExitUsage;
  }
  const auto path = resolve_program(program, environment);
  if (!path) {
    say("{}", why_no_program(program));
    return kExitNotFound;
  }
  auto limit = limit_of(options, environment);
  if (!limit) return fail(kExitUsage, limit.error());
  if (auto patience = patience_of(options); !patience) return fail(kExitUsage, patience.error());
  const auto trust_group = trust_group_of(options, environment);
  if (!trust_group) return fail(kExitUsage, trust_group.error());
  auto installation = Installation::of_this_program();
  if (!installation) return fail(kExitCannotRun, installation.error());
  auto library = installation->library();
  if (!library) return fail(kExitCannotRun, library.error());
  auto link = find_or_start_scheduler(*installation);
  if (!link) return fail(kExitCannotRun, link.error());
  if (auto ok = check_mps_directory(*trust_group, *link, environment); !ok) return fail(kExitUsage, ok.error());
  const auto visible = environment.find(kVisibleDevices);
  if (auto code = wait_to_start(options, visible == environment.end() ? "" : visible->second, *link)) return *code;
  FileDescriptor placing = begin_placing(*link);
  auto gpu = gpu_of(options, environment, *link);
  if (!gpu) return fail(kExitUsage, gpu.error());

  const auto gpus = limit->reserved > 0 && link->admin ? gpus_seen(options, environment, *gpu, *link) : std::vector<std::string>();
  environment["LD_PRELOAD"] = append_preload(environment["LD_PRELOAD"], *library);
  if (!gpu->visible_devices.empty()) environment[kVisibleDevices] = gpu->visible_devices;
  if (limit->bytes > 0) environment[kMemoryLimit] = std::to_string(limit->bytes);
  if (link->runtime_directory != protocol::kRuntimeDirectoryDefault) {
    environment[protocol::kRuntimeDirectoryVariable] = link->runtime_directory;
  }
  if (const auto needs = needs_an_answer(options, *limit); needs && !link->admin) {
    say("{}: {}", *needs, link->admin_error);
    return kExitCannotRun;
  }
  auto trace = begin_trace(options.trace, *link);
  if (!trace) return fail(kExitCannotRun, trace.error());
  auto registered = register_tenant(*link, *limit, gpus, options);
  placing.reset();
  if (!registered) return fail(kExitCannotRun, registered.error());
  const std::optional<uint64_t> tenant = *registered;
  const bool mps = share_by_mps(*trust_group, *link, environment);
  const std::string in_group = trust_group->empty() ? "" : fmt::format(" (trust group {})", *trust_group);
  if (!options.quiet) say_start_line(*gpu, *limit, *link, mps ? ", under MPS" + in_group : "");

  auto status = run_program(options, environment, *link, tenant, trace->get());
  if (!status) return fail(kExitCannotRun, status.error());
  if (*trace) end_trace(**trace, options.trace);
  if (tenant) {
    if (auto seen = was_seen(*link, *tenant); seen && !*seen) explain_no_client(*path);
  }
  return exit_code_of(*status);
}

}  // namespace nvshare::cli
