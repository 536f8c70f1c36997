// The SPANK plugin: --nvshare for srun, sbatch and salloc; in slurmstepd, as root, the scheduler is told of each step before its tasks
// begin, and the tasks get the library; in the epilog, that the job is gone. One thread; slurmstepd forks between init_post_opt and
// task_init, so that the tasks know what was decided. Nothing is thrown into Slurm.
#include <pwd.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
}

#include "protocol/paths.h"
#include "slurm/job_comment.h"
#include "slurm/job_link.h"
#include "slurm/options.h"
#include "slurm/watch_start.h"

namespace nvshare::slurm {
namespace {

constexpr size_t kValueBytesMax = 4096;
constexpr int kFailure = -1;  // what is positive Slurm passes over

// What was found out in this process, by one callback for the next.
struct State {
  bool asked = false;    // by the option
  std::string argument;  // of it; its last use counts
  std::string site_file;
  Site site;
  bool shares = false;  // the step's tasks are nvshare's
  std::string failure;  // why the tasks must not run
  pid_t watch = 0;      // tells the scheduler of the step's signals
  uint32_t ended = 0;   // tasks of this node
  bool commented = false;
};

State& state() {
  static auto* instance = new State;  // never destroyed: slurmstepd may end in any way
  return *instance;
}

// Where nothing else is said: beside slurm.conf. In slurmstepd the variable is slurmd's, not the user's.
std::string site_file_of(int count, char** arguments) {
  constexpr std::string_view kConfig = "config=";
  for (int i = 0; i < count; ++i) {
    if (std::string_view(arguments[i]).starts_with(kConfig)) return arguments[i] + kConfig.size();
  }
  const char* slurm_conf = std::getenv("SLURM_CONF");
  const std::string path = slurm_conf != nullptr ? slurm_conf : "";
  const size_t slash = path.rfind('/');
  return (slash == std::string::npos ? std::string("/etc/slurm") : path.substr(0, slash)) + "/nvshare.conf";
}

bool is_submission() { return spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR; }

std::optional<std::string> own_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<std::string> variable_of_job(spank_t spank, const char* name) {
  std::vector<char> value(kValueBytesMax);
  if (spank_getenv(spank, name, value.data(), static_cast<int>(value.size())) != ESPANK_SUCCESS) return std::nullopt;
  return std::string(value.data());
}

Result<Request> request_of(const Lookup& environment) {
  Result<Request> request = parse_request(state().argument);
  if (!request) return error_format("--nvshare: %.230s", request.error().text);
  return with_environment(*request, environment);
}

// Where the option has no argument Slurm hands on the text "(null)".
void note_option(const char* argument) {
  state().asked = true;
  state().argument = argument == nullptr || std::strcmp(argument, "(null)") == 0 ? "" : argument;
}

// A batch script that was submitted with --export=NONE is not told of its options (22.05); their variables are there.
void look_for_option(spank_t spank) {
  for (const char* name : {"_SLURM_SPANK_OPTION_nvshare_nvshare", "SLURM_SPANK__SLURM_SPANK_OPTION_nvshare_nvshare"}) {
    if (state().asked) return;
    if (const auto argument = variable_of_job(spank, name)) note_option(argument->c_str());
  }
}

// Slurm calls it once for each place that the option comes from; the last one counts.
int take_option(int, const char* argument, int) {
  try {
    State& now = state();
    note_option(argument);
    if (auto request = parse_request(now.argument); !request) {
      slurm_error("nvshare: --nvshare: %s", request.error().text);
      return -1;
    }
  } catch (const std::exception& problem) {
    slurm_error("nvshare: %s", problem.what());
    return -1;
  }
  return 0;
}

spank_option* option() {
  static char name[] = "nvshare", argument[] = "memory=BYTES,cores=PERCENT,priority=N",
              usage[] = "share GPUs with other jobs (nvshare); limits of this job on each of its GPUs";
  static spank_option instance = {name, argument, usage, 2, 0, take_option};
  return &instance;
}

int register_option(spank_t spank, int count, char** arguments) {
  State& now = state();
  now.site_file = site_file_of(count, arguments);
  if (spank_option_register(spank, option()) != ESPANK_SUCCESS) {
    slurm_error("nvshare: Slurm does not take the option --nvshare");
    return kFailure;
  }
  return ESPANK_SUCCESS;
}

// srun, sbatch, salloc: what is wrong is refused before the job exists. A submission host may have no nvshare.conf.
int check_submission() {
  State& now = state();
  if (!now.asked && !asks_by_environment(own_variable)) return ESPANK_SUCCESS;
  Result<Site> site = read_site(now.site_file);
  if (!site) {
    slurm_error("nvshare: %s", site.error().text);
    return kFailure;
  }
  Result<Request> request = request_of(own_variable);
  Result<void> ok = request ? check(*site, *request) : Result<void>(request.error());
  if (ok) return ESPANK_SUCCESS;
  slurm_error("nvshare: %s", ok.error().text);
  return kFailure;
}

std::string user_of(spank_t spank) {
  uid_t uid = 0;
  if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS) return {};
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) return entry.pw_name;
  return std::to_string(uid);
}

// Slurm sets and removes it itself: what a user says of it does not come here.
int shards_of(spank_t spank) {
  const auto shards = variable_of_job(spank, "SLURM_SHARDS_ON_NODE");
  return shards ? std::atoi(shards->c_str()) : 0;
}

// slurmstepd, as root: the job's limits go to the scheduler before a task of it begins. An error ends the tasks, and not the node's slurmd.
Result<void> tell_of_step(spank_t spank) {
  State& now = state();
  uint32_t job = 0, step = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS) return {};
  if (step == SLURM_EXTERN_CONT) return {};  // it has no tasks; what ssh brings there has the job's cgroup
  const Lookup environment = [spank](const char* name) { return variable_of_job(spank, name); };
  look_for_option(spank);
  Result<Site> site = read_site(now.site_file);
  const bool asks = now.asked || asks_by_environment(environment);
  if (!site) return asks ? site.error() : Result<void>();
  now.site = *site;
  const int shards = shards_of(spank);
  if (!asks && !site->all_jobs && (shards == 0 || site->shards_per_gpu == 0)) return {};
  now.shares = true;
  Result<Request> request = request_of(environment);
  if (!request) return request.error();
  const Grant grant = decide(*site, *request, shards);
  protocol::admin::JobRequest told;
  told.job = job;
  told.pid = getpid();
  told.user = user_of(spank);
  told.partition = variable_of_job(spank, "SLURM_JOB_PARTITION").value_or("");
  told.gpu_memory_limit = grant.memory;
  told.gpu_memory_percent = grant.memory_percent;
  (grant.by_shards ? told.gpu_core_limit : told.gpu_core_ceiling) = grant.cores;
  told.priority = grant.priority;
  Result<Told> answer = tell(site->runtime_dir, told);
  if (!answer) return answer.error();
  if (*answer == Told::kWaits)
    slurm_info("nvshare: no scheduler answers in %s: the job's GPU work waits for it", site->runtime_dir.c_str());
  return {};
}

int set_variable(spank_t spank, const char* name, const std::string& value) {
  return spank_setenv(spank, name, value.c_str(), 1) == ESPANK_SUCCESS ? ESPANK_SUCCESS : kFailure;
}

std::string with_library(const std::string& preload, const std::string& library) {
  constexpr std::string_view kBetween = ": ";
  for (size_t at = 0; at < preload.size();) {
    const size_t end = std::min(preload.find_first_of(kBetween, at), preload.size());
    if (preload.compare(at, end - at, library) == 0) return preload;
    at = end + 1;
  }
  return preload.empty() ? library : preload + ":" + library;
}

// In the task, as its user, last before it begins: over what the user's environment says.
int prepare_task(spank_t spank) {
  State& now = state();
  if (!now.failure.empty()) {
    slurm_error("nvshare: %s", now.failure.c_str());
    return kFailure;
  }
  if (!now.shares) return ESPANK_SUCCESS;
  if (access(now.site.library.c_str(), R_OK) != 0) {
    slurm_error("nvshare: %s cannot be read on this node; nvshare.conf: library = PATH", now.site.library.c_str());
    return kFailure;
  }
  int result = set_variable(spank, "LD_PRELOAD", with_library(variable_of_job(spank, "LD_PRELOAD").value_or(""), now.site.library));
  if (result == ESPANK_SUCCESS) result = set_variable(spank, "NVSHARE_REQUIRE_SCHEDULER", "wait");
  if (result == ESPANK_SUCCESS) result = set_variable(spank, protocol::kRuntimeDirectoryVariable, now.site.runtime_dir);
  if (result != ESPANK_SUCCESS) slurm_error("nvshare: Slurm does not take the environment of this task");
  return result;
}

// In slurmstepd, as root, once the first task is forked and waits in the step's container.
void watch_signals(spank_t spank) {
  State& now = state();
  if (!now.shares || !now.failure.empty() || now.watch != 0) return;
  uint32_t job = 0;
  pid_t task = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || spank_get_item(spank, S_TASK_PID, &task) != ESPANK_SUCCESS) return;
  Result<pid_t> watch = start_watch(job, now.site.runtime_dir, now.site.suspend_time, task);
  if (watch) {
    now.watch = *watch;
  } else {  // the job runs without
    slurm_info("nvshare: %s; this step gets no turn early when it is ended, and keeps its memory when it is suspended", watch.error().text);
  }
}

void end_watch() {
  const pid_t watch = std::exchange(state().watch, 0);
  if (watch <= 0) return;
  kill(watch, SIGKILL);
  waitpid(watch, nullptr, 0);
}

// Once for the step. Later, in the epilog, slurmctld takes no comment any more.
int comment(spank_t spank) {
  uint32_t job = 0;
  if (!state().shares || !state().site.comment || state().commented) return ESPANK_SUCCESS;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return ESPANK_SUCCESS;
  state().commented = true;
  comment_on_job(job, use_of_job(state().site.runtime_dir, job));
  return ESPANK_SUCCESS;
}

// slurmstepd, as root, before srun hears of a task's end. With the last one srun ends, and a job that is srun's own with it: at the step's
// end it may be too late.
int end_task(spank_t spank) {
  uint32_t tasks = 0;
  if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS) return ESPANK_SUCCESS;
  return ++state().ended < tasks ? static_cast<int>(ESPANK_SUCCESS) : comment(spank);
}

// slurmd, as root. Also for jobs that never asked: nobody knows them, then.
int end_job(spank_t spank) {
  uint32_t job = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return ESPANK_SUCCESS;
  Result<Site> site = read_site(state().site_file);
  if (!site) {
    slurm_error("nvshare: %s", site.error().text);
    return ESPANK_SUCCESS;
  }
  protocol::admin::JobRequest gone;
  gone.job = job;
  gone.gone = true;
  if (auto told = tell(site->runtime_dir, gone); !told) slurm_error("nvshare: the end of job %u: %s", job, told.error().text);
  return ESPANK_SUCCESS;
}

template <typename Call>
int guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& problem) {
    slurm_error("nvshare: %s", problem.what());
    return kFailure;
  }
}

}  // namespace
}  // namespace nvshare::slurm

using namespace nvshare::slurm;

#define NVSHARE_EXPORT __attribute__((visibility("default")))

extern "C" {

// As SPANK_PLUGIN(nvshare, 1) would define them, with C++'s linkage.
NVSHARE_EXPORT extern const char plugin_name[];
NVSHARE_EXPORT extern const char plugin_type[];
NVSHARE_EXPORT extern const unsigned int plugin_version;
NVSHARE_EXPORT extern const unsigned int spank_plugin_version;
const char plugin_name[] = "nvshare";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

NVSHARE_EXPORT int slurm_spank_init(spank_t spank, int count, char** arguments) {
  return guarded([&] { return register_option(spank, count, arguments); });
}

NVSHARE_EXPORT int slurm_spank_init_post_opt(spank_t spank, int, char**) {
  return guarded([&] {
    if (is_submission()) return check_submission();
    if (spank_context() != S_CTX_REMOTE) return static_cast<int>(ESPANK_SUCCESS);
    auto told = tell_of_step(spank);
    if (!told) state().failure = told.error().text;
    return static_cast<int>(ESPANK_SUCCESS);
  });
}

NVSHARE_EXPORT int slurm_spank_task_init(spank_t spank, int, char**) {
  return guarded([&] { return prepare_task(spank); });
}

NVSHARE_EXPORT int slurm_spank_task_post_fork(spank_t spank, int, char**) {
  return guarded([&] {
    watch_signals(spank);
    return static_cast<int>(ESPANK_SUCCESS);
  });
}

NVSHARE_EXPORT int slurm_spank_task_exit(spank_t spank, int, char**) {
  return guarded([&] { return end_task(spank); });
}

NVSHARE_EXPORT int slurm_spank_exit(spank_t spank, int, char**) {
  end_watch();
  return guarded([&] { return spank_context() == S_CTX_REMOTE ? comment(spank) : static_cast<int>(ESPANK_SUCCESS); });
}

NVSHARE_EXPORT int slurm_spank_job_epilog(spank_t spank, int count, char** arguments) {
  return guarded([&] {
    state().site_file = site_file_of(count, arguments);
    return end_job(spank);
  });
}
}
