#include "e2e/harness/stage.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <vector>

#include "cli/admin_connection.h"
#include "cli/replay_view.h"
#include "e2e/harness/random.h"
#include "replay/answers.h"

namespace nvshare::e2e {

using namespace std::chrono_literals;

const char* const kSchedulerPath = E2E_SCHEDULER;
const char* const kLibraryPath = E2E_LIBRARY;
const char* const kStandInFolder = E2E_STAND_IN;
const char* const kFakeVideoPath = E2E_FAKE_VIDEO;
const char* const kLinkedVideoPath = E2E_LINKED_VIDEO;
const char* const kNewerStandInFolder = E2E_STAND_IN_NEWER;
const char* const kWorkerPath = E2E_WORKER;
const char* const kControlPath = E2E_CONTROL;
const char* const kNvmlViewerPath = E2E_NVML_VIEWER;
const char* const kNvmlLinkedViewerPath = E2E_NVML_LINKED_VIEWER;

namespace {

constexpr size_t kLogTail = 6000;  // bytes of each log that are printed

std::string make_directory() {
  // Sockets' names are short, and the GPU's state wants memory under it.
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    std::string name = std::string(parent) + "/nvs-e2e-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) return name;
  }
  std::perror("mkdtemp");
  std::abort();
}

// A sanitizer's runtime must be the first library of the process.
std::string preload_list(const std::string& library) {
  std::string list = E2E_SANITIZER_RUNTIME;
  if (!list.empty()) list += ":";
  return list + library;
}

std::string in_previous(const char* name) {
  const char* folder = std::getenv("NVSHARE_TEST_PREVIOUS");
  return std::string(folder != nullptr ? folder : E2E_PREVIOUS) + "/" + name;
}

void touch(const std::string& file) { std::ofstream(file) << "\n"; }

}  // namespace

std::string previous_scheduler() { return in_previous("nvshare-scheduler"); }
std::string previous_library() { return in_previous("libnvshare.so"); }

Duration moments() { return 10s * kSlowness; }
Duration patience() { return 120s * std::min(kSlowness, 2); }

Stage::Stage(StageOptions options) : options_(std::move(options)), directory_(make_directory()) {
  std::filesystem::create_directory(runtime_directory());
  seed();
}

Stage::~Stage() {
  tell_to_stop();
  for (auto& child : children_) child->kill_family();
  if (scheduler_) scheduler_->kill_family();
  replay_recording();
  if (testing::Test::HasFailure()) print_logs();
  if (std::getenv("NVSHARE_TEST_KEEP") != nullptr) {
    std::cout << "kept: " << directory_ << "\n";
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

// What the policy was told is all that it decided by: this build answers all of it as the schedulers did.
void Stage::replay_recording() {
  if (!std::filesystem::exists(trace_file()) || std::getenv("NVSHARE_TEST_PREVIOUS") != nullptr) return;
  const auto replayed = replay::replay(trace_file());
  EXPECT_TRUE(replayed) << trace_file() << " " << replayed.error().text;
  if (!replayed || !replayed->answers.difference()) return;
  ADD_FAILURE() << "the policy decided by something that is not in the recording: " << cli::replay_text(*replayed, "trace", "this build");
}

void Stage::print_logs() {
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() == ".log") logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end());
  logs.emplace_back(trace_file());
  for (const auto& path : logs) {
    std::ifstream stream(path);
    std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (text.size() > kLogTail) text = "[...]" + text.substr(text.size() - kLogTail);
    std::cout << "---- " << path.filename().string() << "\n" << text << "\n";
  }
}

Environment Stage::base_environment() const {
  Environment environment = {
      {"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
      {"LD_LIBRARY_PATH", kStandInFolder},
      {"NVSHARE_RUNTIME_DIR", runtime_directory()},
      {"SIMGPU_STATE", directory_ + "/gpu"},
      {"SIMGPU_MEMORY_MB", std::to_string(options_.gpu_memory_mb)},
      {"SIMGPU_CONTEXT_MB", std::to_string(options_.context_mb)},
      {"SIMGPU_LINK_MBPS", std::to_string(options_.link_mbps)},
      {"SIMGPU_COPIES_THROUGH_FILES", "1"},
      // A program is killed or exits where it stands; what a sanitizer finds must end it.
      {"ASAN_OPTIONS", "detect_leaks=0:abort_on_error=0:exitcode=86"},
      {"UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"},
      // A process with threads sleeps a second at its exit by default, to see races with who goes on; hundreds of them end here.
      {"TSAN_OPTIONS", "halt_on_error=1:exitcode=86:die_after_fork=0:report_signal_unsafe=0:report_thread_leaks=0:atexit_sleep_ms=100"},
  };
  for (const auto& [name, value] : options_.gpu) environment[name] = value;
  return environment;
}

// ---- the scheduler ----

void Stage::start_scheduler(const std::string& program) {
  Environment environment = base_environment();
  environment["NVSHARE_LOCK_DIR"] = directory_ + "/lock";
  environment["NVSHARE_SWITCH_TIME_MODE"] = "fixed";
  environment["NVSHARE_SWITCH_TIME_FIXED"] = options_.switch_time;
  environment["NVSHARE_MEMORY_RESERVE_PERCENT"] = std::to_string(options_.reserve_percent);
  environment["NVSHARE_NVML_INTERVAL"] = "0.05";
  environment["NVSHARE_HOST_MEMORY_KEPT_FREE"] = "256Mi";  // other tests on this machine may need much
  environment["NVSHARE_LOG_LEVEL"] = std::getenv("NVSHARE_TEST_DEBUG") != nullptr ? "debug" : "info";
  environment["NVSHARE_TRACE"] = trace_file();
  if (const char* skip = std::getenv("NVSHARE_TEST_SKIP_UNCHANGED")) environment["NVSHARE_SKIP_UNCHANGED"] = skip;
  for (const auto& [name, value] : options_.scheduler) environment[name] = value;
  scheduler_.reset();
  scheduler_ = std::make_unique<Child>(
      Child::Spec{"scheduler", {program}, environment, directory_ + "/scheduler-" + std::to_string(++schedulers_) + ".log"});
  bool answers = wait_until([&] { return status().has_value() || !scheduler_->running(); }, moments());
  ASSERT_TRUE(answers && scheduler_->running()) << "the scheduler does not answer: " << scheduler_->log();
}

void Stage::kill_scheduler() {
  scheduler_->signal(SIGKILL);
  ASSERT_TRUE(scheduler_->wait(moments()));
}

void Stage::stop_scheduler() {
  scheduler_->signal(SIGTERM);
  std::optional<int> status = scheduler_->wait(moments());
  ASSERT_TRUE(status) << "the scheduler does not end";
  EXPECT_EQ(*status, 0) << scheduler_->log();
}

std::optional<protocol::admin::StatusReport> Stage::status() {
  auto admin = cli::AdminConnection::open(runtime_directory());
  if (!admin) return std::nullopt;
  auto report = admin->status();
  if (!report) return std::nullopt;
  return *report;
}

void Stage::make_tenant(const std::string& name, pid_t root, int64_t gpu_memory_limit) {
  auto admin = cli::AdminConnection::open(runtime_directory());
  ASSERT_TRUE(admin) << admin.error().text;
  protocol::admin::TenantRequest request;
  request.pid = root;
  request.name = name;
  request.gpu_memory_limit = gpu_memory_limit;
  auto reply = admin->ask(request);
  ASSERT_TRUE(reply && protocol::admin::decode_tenant(*reply)) << name;
}

std::optional<protocol::admin::ClientReport> Stage::client_of(pid_t pid) {
  auto report = status();
  if (!report) return std::nullopt;
  for (const auto& client : report->clients) {
    if (client.pid == pid) return client;
  }
  return std::nullopt;
}

// ---- programs ----

Child& Stage::start_command(const std::string& name, const std::vector<std::string>& command, bool preload, const Environment& more) {
  Environment environment = base_environment();
  environment["NVSHARE_LOG_LEVEL"] = "info";
  if (preload) environment["LD_PRELOAD"] = preload_list(kLibraryPath);
  for (const auto& [key, value] : more) environment[key] = value;
  children_.push_back(std::make_unique<Child>(Child::Spec{name, command, environment, directory_ + "/" + name + ".log"}));
  return *children_.back();
}

static std::vector<std::string> worker_command(const std::string& stop_file, const Arguments& arguments) {
  std::vector<std::string> command = {kWorkerPath};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"--stop", stop_file});
  return command;
}

Child& Stage::start(const std::string& name, const Arguments& arguments, const Environment& more) {
  return start_command(name, worker_command(directory_ + "/stop", arguments), true, more);
}

Child& Stage::start_with(const std::string& library, const std::string& name, const Arguments& arguments, const Environment& more) {
  Environment environment = more;
  environment["LD_PRELOAD"] = preload_list(library);
  return start(name, arguments, environment);
}

Child& Stage::start_bare(const std::string& name, const Arguments& arguments, const Environment& more) {
  return start_command(name, worker_command(directory_ + "/stop", arguments), false, more);
}

Child& Stage::start_tenant(const std::string& name, const std::vector<Arguments>& members, int64_t memory_limit, int core_limit) {
  return start_family(name, members, {0, name, memory_limit, true, core_limit});
}

Child& Stage::start_reserved(const std::string& name, const Arguments& arguments, int64_t reserved) {
  protocol::admin::TenantRequest request{0, name, reserved};
  request.gpu_memory_reserved = reserved;
  return start_family(name, {arguments}, request);
}

Child& Stage::start_family(const std::string& name, const std::vector<Arguments>& members, protocol::admin::TenantRequest request) {
  std::string script = "until [ -e " + go_file(name) + " ]; do sleep 0.02; done\n";
  for (const Arguments& arguments : members) {
    for (const std::string& word : worker_command(directory_ + "/stop", arguments)) script += "'" + word + "' ";
    script += "& all=\"$all $!\"\n";
  }
  script += "right=0; for one in $all; do wait $one || right=$?; done; exit $right\n";
  Child& shell = start_command(name, {"/bin/sh", "-c", script}, true);
  auto admin = cli::AdminConnection::open(runtime_directory());
  EXPECT_TRUE(admin) << "no scheduler to tell of a tenant";
  if (admin) {
    request.pid = shell.pid();
    auto told = admin->ask(request);
    EXPECT_TRUE(told) << told.error().text;
  }
  tell_to_go(name);
  return shell;
}

std::string Stage::set_memory_limit(const std::string& tenant, int64_t bytes) {
  auto admin = cli::AdminConnection::open(runtime_directory());
  if (!admin) return admin.error().text;
  protocol::admin::SetRequest request;
  request.tenant = tenant;
  request.gpu_memory_limit = bytes;
  auto line = admin->ask(request);
  if (!line) return line.error().text;
  auto ok = protocol::admin::decode_ok(*line);
  return ok ? std::string() : ok.error().text;
}

void Stage::forget(Child& child) {
  std::erase_if(children_, [&](const auto& other) { return other.get() == &child; });
}

void Stage::tell_to_stop() { touch(directory_ + "/stop"); }
void Stage::tell_to_go(const std::string& name) { touch(go_file(name)); }

// What the scheduler believes, as it says it.
std::string Stage::raw_status() {
  auto admin = cli::AdminConnection::open(runtime_directory());
  if (!admin) return admin.error().text;
  auto line = admin->ask(protocol::admin::StatusRequest{});
  return line ? *line : line.error().text;
}

// Where its threads are, from the debugger where there is one.
std::string Stage::stacks_of(const Child& child) const {
  const std::string file = directory_ + "/" + child.name() + ".stacks";
  const std::string command =
      "gdb -p " + std::to_string(child.pid()) + " -batch -ex 'thread apply all backtrace 20' > " + file + " 2>&1 < /dev/null";
  if (std::system(command.c_str()) == -1) return "no shell";
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void Stage::expect_success(Child& child) {
  std::optional<int> status = child.wait(patience());
  ASSERT_TRUE(status) << child.name() << " does not end; its log:\n"
                      << child.log() << "\nstatus: " << raw_status() << "\n"
                      << stacks_of(child);
  EXPECT_EQ(*status, 0) << child.name() << ":\n" << child.log();
  EXPECT_TRUE(child.logged("all right")) << child.name() << ":\n" << child.log();
}

bool Stage::anybody_ended() {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) { return !child->running(); });
}

void Stage::expect_success_of_all() {
  for (auto& child : children_) expect_success(*child);
}

bool Stage::wait_until(const std::function<bool()>& ready, Duration longest) {
  Clock::time_point deadline = Clock::now() + longest;
  // A report takes both sides milliseconds under a sanitizer: with this pause all along, the asking was a third of a test's work there.
  useconds_t pause_us = 3000;
  while (!ready()) {
    if (Clock::now() >= deadline) return false;
    usleep(pause_us);
    pause_us = std::min<useconds_t>(pause_us * 3 / 2, repeats(3000, 12'000));
  }
  return true;
}

bool Stage::wait_for_turns(const std::vector<const Child*>& children, uint64_t more) {
  const auto turns = [&](const Child* child) {
    const auto client = client_of(child->pid());
    return client ? client->turns : uint64_t{0};
  };
  std::vector<uint64_t> due;
  for (const Child* child : children) due.push_back(turns(child) + more);
  return wait_until([&] { return std::ranges::equal(children, due, std::greater_equal(), turns) || anybody_ended(); });
}

Stage::GpuCounters Stage::gpu_counters() {
  static int asked = 0;
  Child asking({"control", {kWorkerPath, "control"}, base_environment(), directory_ + "/control-" + std::to_string(++asked)});
  EXPECT_EQ(asking.wait(moments()), 0) << asking.log();
  std::map<std::string, uint64_t> values;
  std::istringstream lines(asking.log());
  std::string name;
  for (uint64_t value = 0; lines >> name >> value;) values[name] = value;
  EXPECT_EQ(values.size(), 4u) << asking.log();
  return {values["all_submissions"], values["all_violations"], values["all_faults"], values["used_bytes"]};
}

void Stage::order_gpu(const std::string& order) {
  Child asking({"control", {kWorkerPath, "control", "--set", order}, base_environment(), directory_ + "/control-order"});
  EXPECT_EQ(asking.wait(moments()), 0) << asking.log();
}

void Stage::expect_gpu_unharmed() {
  GpuCounters counters = gpu_counters();
  EXPECT_EQ(counters.faults, 0u) << "GPU work touched memory that was not there";
  EXPECT_EQ(counters.violations, 0u) << "GPU work was submitted where it was forbidden";
}

}  // namespace nvshare::e2e
