// nvsharectl as people start it, on the stand-in GPU, with a scheduler that it starts itself.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "cli/admin_connection.h"
#include "cli/process.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kJobArguments[] = " --bytes 32M --block 4M --steps 2 --compute-us 100 --seed 5";

struct Ran {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const std::string kLongTurns = "env TERM=xterm SIMGPU_TIME_SCALE=1 NVSHARE_SWITCH_TIME_MODE=fixed NVSHARE_SWITCH_TIME_FIXED=8 ";
const std::string kFills = DEMO_JOB " --bytes 160M --block 4M --compute-us 1000 --seed 5 --steps ";

class RunCommand : public testing::Test {
 protected:
  RunCommand() {
    char directory[] = "/tmp/nvshare-run-test-XXXXXX";
    directory_ = mkdtemp(directory);
    state_ = "/dev/shm/" + directory_.filename().string();
    variables_ = "env -u CUDA_VISIBLE_DEVICES -u LD_PRELOAD NVSHARE_RUNTIME_DIR=" + runtime() + " NVSHARE_LOCK_DIR=" + runtime() +
                 "/locks NVSHARE_MEMORY_RESERVE_PERCENT=10 SIMGPU_MEMORY_MB=256 SIMGPU_TIME_SCALE=0 SIMGPU_STATE=" + state_ +
                 " LD_LIBRARY_PATH=" STAND_IN " ";
  }
  ~RunCommand() override {
    if (auto admin = AdminConnection::open(runtime())) {
      auto ended = admin->ask(protocol::admin::ShutdownRequest{});
      EXPECT_TRUE(ended) << ended.error().text;
      // Its files are gone only when it is.
      for (int tries = 0; tries < 500 && AdminConnection::open(runtime()); ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
    fs::remove(state_, ignored);
  }

  std::string runtime() const { return (directory_ / "run").string(); }

  // What nvsharectl says to that.
  std::string asked(const std::string& arguments) const {
    const std::string file = (directory_ / "asked").string();
    (void)!std::system((variables_ + NVSHARECTL " " + arguments + " > " + file + " 2>&1 < /dev/null").c_str());
    return content_of(file);
  }

  // A program that fills most of the GPU, in turns of 8 s; returns as it runs.
  void begin_first() const {
    const std::string command = variables_ + kLongTurns + NVSHARECTL " run --quiet --name first -- " + kFills + "100000";
    ASSERT_EQ(std::system((command + " > /dev/null 2>&1 < /dev/null &").c_str()), 0);
    for (int tries = 0; tries < 1000 && asked("status --json").find("\"state\":\"running\"") == std::string::npos; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // A shell command line, with the test's variables and then `more` ones.
  Ran shell(const std::string& command, const std::string& more = "") const {
    const fs::path out = directory_ / "out";
    const fs::path err = directory_ / "err";
    const int status =
        std::system((variables_ + more + " " + command + " > " + out.string() + " 2> " + err.string() + " < /dev/null").c_str());
    return {exit_code_of(status), content_of(out), content_of(err)};
  }

  Ran nvsharectl(const std::string& arguments, const std::string& more = "") const { return shell(NVSHARECTL " " + arguments, more); }

  fs::path directory_;
  std::string state_;
  std::string variables_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string result_of(const std::string& out) {
  const size_t begin = out.find("\"checksum\":");
  return begin == std::string::npos ? out : out.substr(begin, 30);
}

TEST_F(RunCommand, StartsASchedulerSaysWhatItChoseAndPassesTheExitCodeOn) {
  const Ran ran = nvsharectl("run -- sh -c 'echo hello; exit 7'");
  EXPECT_EQ(ran.exit_code, 7) << ran.err;
  EXPECT_EQ(ran.out, "hello\n");
  EXPECT_TRUE(has(ran.err, "nvshare: GPU 0 (")) << ran.err;
  EXPECT_TRUE(has(ran.err, "memory limit none, scheduler " + runtime() + " (started for you)")) << ran.err;
}

TEST_F(RunCommand, AProgramWithoutCudaIsToldSo) {
  const Ran ran = nvsharectl("run true");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(has(ran.err, "no CUDA call of this program was seen")) << ran.err;
}

// As nvidia-smi, which makes no CUDA call.
TEST_F(RunCommand, AProgramThatAsksNvmlAloneIsToldNothing) {
  const Ran ran = nvsharectl(
      "run --gpu-memory-limit 64Mi -- /usr/bin/python3 -c 'import ctypes; nvml = ctypes.CDLL(\"libnvidia-ml.so.1\"); nvml.nvmlInit_v2(); "
      "gpu = ctypes.c_void_p(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)); memory = (ctypes.c_ulonglong * 3)(); "
      "nvml.nvmlDeviceGetMemoryInfo(gpu, memory); print(memory[0] >> 20)'");
  EXPECT_EQ(ran.out, "64\n") << ran.err;
  EXPECT_FALSE(has(ran.err, "no CUDA call")) << ran.err;
}

TEST_F(RunCommand, ACudaProgramComputesWhatItComputesAlone) {
  const Ran alone = shell(DEMO_JOB + std::string(kJobArguments));
  ASSERT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  ASSERT_TRUE(has(alone.out, "checksum"));
  for (const char* scheduler : {"(started for you)", "(yours)"}) {
    const Ran shared = nvsharectl(std::string("run ") + DEMO_JOB + kJobArguments);
    EXPECT_EQ(shared.exit_code, 0) << shared.err;
    EXPECT_EQ(result_of(shared.out), result_of(alone.out));
    EXPECT_FALSE(has(shared.err, "no CUDA call")) << shared.err;
    EXPECT_TRUE(has(shared.err, scheduler)) << shared.err;
  }
}

TEST_F(RunCommand, TheMemoryLimitHolds) {
  const Ran ran = nvsharectl("run --gpu-memory-limit 16Mi -- " + std::string(DEMO_JOB) + kJobArguments);
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_TRUE(has(ran.out, "cuMemAlloc")) << ran.out;
  EXPECT_TRUE(has(ran.err, "memory limit 16 MiB (by --gpu-memory-limit)")) << ran.err;
  const Ran wrong = nvsharectl("run --gpu-memory-limit lots -- true");
  EXPECT_EQ(wrong.exit_code, 125);
  EXPECT_TRUE(has(wrong.err, "--gpu-memory-limit")) << wrong.err;
  for (const char* option : {"--gpu-core-limit 4O", "--gpu-core-limit 0", "--reserve-memory 4gb"}) {
    const Ran refused = nvsharectl(std::string("run ") + option + " -- true");
    EXPECT_NE(refused.exit_code, 0) << option;
    EXPECT_TRUE(has(refused.err, std::string(option).substr(0, std::string(option).find(' ')))) << refused.err;
  }
  const Ran reserved = nvsharectl("run --reserve-memory 16Mi --gpu-memory-limit 32Mi -- true");
  EXPECT_EQ(reserved.exit_code, 0);
  EXPECT_TRUE(has(reserved.err, "memory limit 16 MiB (by --reserve-memory)")) << reserved.err;
}

// Before the program is started, and in one line.
TEST_F(RunCommand, AReservationThatHasNoRoomStartsNothing) {
  const Ran refused = nvsharectl("run --reserve 1Gi -- echo started");
  EXPECT_EQ(refused.exit_code, 126);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err.rfind("nvshare: --reserve-memory: no room for a reservation of 1 GiB on GPU ", 0), 0u) << refused.err;
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  const Ran several = nvsharectl("run --reserve 1Gi --gpu all -- echo started");
  EXPECT_EQ(several.exit_code, 126) << several.err;
  // Of two at the same moment one has its reservation until it ends, though it does not use the GPU yet.
  const std::string one = NVSHARECTL " run --quiet --reserve 150Mi -- sh -c \"echo started; sleep 0.5\"";
  const Ran two = shell("sh -c '" + one + " & " + one + "; wait'");
  EXPECT_EQ(two.out, "started\n");
  EXPECT_TRUE(has(two.err, " on GPU 0 (GPU-")) << two.err;
  EXPECT_TRUE(has(two.err, "; accepted: up to 106 MiB (others have 150 MiB; ")) << two.err;
  EXPECT_EQ(nvsharectl("run --reserve 150Mi -- true").exit_code, 0) << "both have ended";
}

TEST_F(RunCommand, TheLibraryIsAppendedToAnExistingPreload) {
  const Ran ran = nvsharectl("run printenv LD_PRELOAD", "LD_PRELOAD=libm.so.6");
  EXPECT_EQ(ran.out, "libm.so.6:" LIBRARY "\n") << ran.err;
}

// It would run without nvshare, and without its limits.
TEST_F(RunCommand, AProgramIsNotStartedWithALibraryThatThePreloadCannotName) {
  const std::string odd = (directory_ / "a b:c.so").string(), plain = (directory_ / "plain.so").string();
  fs::copy_file(LIBRARY, odd);
  fs::create_symlink(odd, plain);
  const Ran refused = nvsharectl("run echo started", "NVSHARE_LIBRARY='" + odd + "'");
  EXPECT_EQ(refused.exit_code, 126) << refused.err;
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(has(refused.err, "its name ends at a blank or ':'; install it elsewhere, or set NVSHARE_LIBRARY to a link")) << refused.err;
  const Ran ran = nvsharectl("run printenv LD_PRELOAD", "NVSHARE_LIBRARY=" + plain);
  EXPECT_EQ(ran.out, plain + "\n") << ran.err;
}

// Frameworks say that they are out of memory, not why.
TEST_F(RunCommand, AProgramThatDoesNotFitTheGpuIsToldSo) {
  const Ran ran = nvsharectl("run -- " + std::string(DEMO_JOB) + " --bytes 512M --block 512M --steps 2 --compute-us 100 --seed 5");
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_TRUE(has(ran.err, "warning: GPU 0 (GPU-")) << ran.err;  // its number, and which of the machine's that is
  EXPECT_TRUE(has(ran.err,
                  "): an allocation of 512 MiB was refused: it does not fit the GPU, whatever others have there "
                  "(this program has 0 B, 0 B of them on the GPU; there is room for "))
      << ran.err;
}

TEST_F(RunCommand, OneOfSeveralGpusIsChosenUnlessTheUserDid) {
  const Ran chosen = nvsharectl("run printenv CUDA_VISIBLE_DEVICES", "SIMGPU_COUNT=2");
  EXPECT_EQ(chosen.out.rfind("GPU-", 0), 0u) << chosen.out << chosen.err;
  EXPECT_TRUE(has(chosen.err, "the emptiest of 2")) << chosen.err;
  const Ran named = nvsharectl("run --gpu 1 printenv CUDA_VISIBLE_DEVICES", "SIMGPU_COUNT=2");
  EXPECT_EQ(named.out.rfind("GPU-", 0), 0u) << named.out << named.err;
  EXPECT_NE(named.out, chosen.out);
  EXPECT_EQ(nvsharectl("run printenv CUDA_VISIBLE_DEVICES", "SIMGPU_COUNT=2 CUDA_VISIBLE_DEVICES=1").out, "1\n");
  EXPECT_EQ(nvsharectl("run --gpu all printenv CUDA_VISIBLE_DEVICES", "SIMGPU_COUNT=2").out, "");
  // Two that begin at the same moment.
  const Ran two = shell("sh -c '" NVSHARECTL " run --quiet -- sh -c \"echo \\$CUDA_VISIBLE_DEVICES; sleep 0.5\" & " NVSHARECTL
                        " run --quiet -- sh -c \"echo \\$CUDA_VISIBLE_DEVICES; sleep 0.5\"; wait'",
                        "SIMGPU_COUNT=2");
  EXPECT_TRUE(has(two.out, chosen.out) && has(two.out, named.out)) << two.out << two.err;
  const Ran missing = nvsharectl("run --gpu 7 true", "SIMGPU_COUNT=2");
  EXPECT_EQ(missing.exit_code, 125);
  EXPECT_TRUE(has(missing.err, "there is no GPU '7'")) << missing.err;
}

TEST_F(RunCommand, StatusShowsTheTenantWhileItRuns) {
  const Ran ran = nvsharectl("run --name train --gpu-memory-limit 64Mi -- sh -c '" NVSHARECTL " status; " NVSHARECTL " status --json'");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(has(ran.out, "train")) << ran.out;
  EXPECT_TRUE(has(ran.out, "64 MiB")) << ran.out;
  EXPECT_TRUE(has(ran.out, "\"gpu_memory_limit\":67108864")) << ran.out;
}

TEST_F(RunCommand, SetChangesBothLimitsOfATenantAtOnce) {
  const Ran ran = nvsharectl("run --name train --gpu-memory-limit 64Mi --priority 9 -- sh -c '" NVSHARECTL " status --json && " NVSHARECTL
                             " set train memory=48Mi core=40 priority=-7 sharing=turns && " NVSHARECTL " status --json && " NVSHARECTL
                             " set train core=none memory=none && " NVSHARECTL " pause train && " NVSHARECTL " status --json && " NVSHARECTL
                             " status && " NVSHARECTL " resume train && " NVSHARECTL " status --json'");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const size_t first = ran.out.find('\n');
  const size_t then = first == std::string::npos ? first : ran.out.find('\n', first + 1);
  ASSERT_NE(then, std::string::npos) << ran.out;
  EXPECT_TRUE(has(ran.out.substr(0, first), "\"priority\":9")) << ran.out;
  const std::string before = ran.out.substr(first, then - first);
  EXPECT_TRUE(has(before, "\"priority\":-7")) << before;
  EXPECT_TRUE(has(before, "\"gpu_memory_limit\":50331648")) << before;
  EXPECT_TRUE(has(before, "\"gpu_core_limit\":40")) << before;
  EXPECT_TRUE(has(before, "\"sharing\":\"turns\"")) << before;
  const std::string after = ran.out.substr(then);
  EXPECT_TRUE(has(after, "\"gpu_memory_limit\":0")) << after;
  EXPECT_TRUE(has(after, "\"gpu_core_limit\":100")) << after;
  EXPECT_FALSE(has(before, "\"paused\":true")) << before;
  EXPECT_TRUE(has(after, "\"paused\":true")) << after;
  EXPECT_TRUE(has(after, "run, paused")) << after;
  EXPECT_FALSE(has(after.substr(after.find("run, paused")), "\"paused\":true")) << after;
  for (const char* wrong : {"train", "train memory", "train memory=lots", "train memory=", "train core=0", "train cores=5", "memory=8Gi",
                            "train priority=101", "priority=1", "train paused=maybe"}) {
    const Ran refused = nvsharectl(std::string("set ") + wrong);
    EXPECT_EQ(refused.exit_code, 125) << wrong;
    EXPECT_TRUE(has(refused.err, "nvsharectl set: ")) << wrong << ": " << refused.err;
  }
}

// A container has the folder of the clients' socket alone: the same here.
TEST_F(RunCommand, WhereOnlyTheClientsSocketIsOneSeesOnesOwn) {
  const fs::path view = directory_ / "view";
  fs::create_directory(view);
  fs::create_directory_symlink(runtime() + "/client", view / "client");
  const std::string own = "NVSHARE_RUNTIME_DIR=" + view.string() + " " NVSHARECTL " ";
  const Ran ran = nvsharectl("run --name train -- sh -c '" DEMO_JOB
                             " --bytes 32M --block 4M --steps 1000000 --compute-us 100 > /dev/null & "
                             "for i in $(seq 400); do " NVSHARECTL " status | grep -q nvshare-demo-job && break; sleep 0.05; done; " +
                             own + "status; " + own + "status --json; " + own + "top --once --columns 100; " + own +
                             "release train && echo gave up; " + own + "release other; " + own + "set train core=5; kill $!'");
  for (const char* part : {"what is yours", "YOURS RESIDENT", "\"own\":true", "yours alone", "nvshare-demo-job", "gave up"})
    EXPECT_TRUE(has(ran.out, part)) << part << ": " << ran.out << ran.err;
  EXPECT_FALSE(has(ran.out, "SAFE LIMIT")) << ran.out;
  EXPECT_TRUE(has(ran.err, "nvsharectl release: 'other' is no tenant of yours")) << ran.err;
  EXPECT_TRUE(has(ran.err, "nvsharectl set: ")) << ran.err;
}

TEST_F(RunCommand, WhatCannotWorkIsRefusedWithAHint) {
  const Ran docker = nvsharectl("run -- docker run --gpus all image");
  EXPECT_EQ(docker.exit_code, 125);
  EXPECT_TRUE(has(docker.err, "LD_PRELOAD=")) << docker.err;
  const Ran absent = nvsharectl("run nvshare-no-such-program");
  EXPECT_EQ(absent.exit_code, 127);
  EXPECT_TRUE(has(absent.err, "nvshare-no-such-program")) << absent.err;
  EXPECT_EQ(nvsharectl("run").exit_code, 125);
}

// A program on a terminal of 100 columns and 30 lines, and what it has written there.
class OnATerminal {
 public:
  explicit OnATerminal(const std::string& command) {
    winsize size{30, 100, 0, 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
      _exit(127);
    }
  }
  ~OnATerminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(terminal_);
  }

  void type(const std::string& keys) const { EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }

  // Whether it wrote `part` since the last call, within 20 s.
  bool shows(const std::string& part) {
    for (const auto deadline = Clock::now() + std::chrono::seconds(20); Clock::now() < deadline;) {
      if (const size_t at = written_.find(part); at != std::string::npos) {
        written_.erase(0, at + part.size());
        return true;
      }
      read_some();
    }
    ADD_FAILURE() << "not shown: " << part << " in " << written_;
    return false;
  }

  int exit_code() {
    int status = 0;
    for (const auto deadline = Clock::now() + std::chrono::seconds(20); Clock::now() < deadline;) {
      read_some();
      if (waitpid(pid_, &status, WNOHANG) != pid_) continue;
      pid_ = 0;
      return exit_code_of(status);
    }
    return -1;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void read_some() {
    pollfd wait{terminal_, POLLIN, 0};
    char bytes[4096];
    if (poll(&wait, 1, 100) <= 0) return;
    const ssize_t n = read(terminal_, bytes, sizeof bytes);
    if (n > 0) {
      written_.append(bytes, static_cast<size_t>(n));
    } else {  // the program has closed it, and ends
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  pid_t pid_ = 0;
  int terminal_ = -1;
  std::string written_;
};

TEST_F(RunCommand, TopShowsWhoRunsSetsAPriorityAndLeavesTheTerminalAsItWas) {
  std::thread job([&] {
    shell(NVSHARECTL " run --name train " DEMO_JOB " --bytes 32M --block 4M --steps 100000 --compute-us 1000 --seed 5",
          "SIMGPU_TIME_SCALE=1 timeout 60");
  });
  for (int tries = 0; tries < 1000 && !has(content_of(directory_ / "err"), "scheduler "); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  {
    OnATerminal top(variables_ + "TERM=xterm " NVSHARECTL " top --interval 0.2");
    EXPECT_TRUE(top.shows("\033[?1049h"));
    EXPECT_TRUE(top.shows("GPU 0"));
    EXPECT_TRUE(top.shows("running"));
    top.type("jp5\r");
    EXPECT_TRUE(top.shows("set priority=5"));
    top.type("z");
    EXPECT_TRUE(top.shows("set paused=yes"));
    EXPECT_TRUE(top.shows("held"));
    top.type("z");
    EXPECT_TRUE(top.shows("set paused=no"));
    EXPECT_TRUE(top.shows("running"));
    top.type("q");
    EXPECT_TRUE(top.shows("\033[?1049l"));
    EXPECT_EQ(top.exit_code(), 0);
  }
  auto admin = AdminConnection::open(runtime());
  const auto status = admin ? admin->status() : admin.error();
  EXPECT_TRUE(status && status->tenants.size() == 1 && status->tenants[0].priority == 5);
  for (const auto& client : status ? status->clients : decltype(status->clients)()) kill(client.pid, SIGTERM);
  job.join();
  const Ran piped = nvsharectl("top");
  EXPECT_EQ(piped.exit_code, 1);
  EXPECT_TRUE(has(piped.err, "top needs a terminal; 'nvsharectl top --once'")) << piped.err;
  const Ran once = nvsharectl("top --once --columns 80");
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_TRUE(has(once.out, "No clients.")) << once.out;
  EXPECT_FALSE(has(once.out, "\033"));
}

// Sums of a trace's slices, by name; `bytes` of copies instead of their time.
std::map<std::string, double> sums_of(const std::string& file) {
  std::map<std::string, double> sums;
  const auto trace = nlohmann::json::parse(std::ifstream(file));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const bool copies = event.contains("args") && event["args"].contains("bytes");
    sums[name.rfind("turn ", 0) == 0 ? "turns" : name] +=
        copies ? event["args"]["bytes"].get<double>() : event.at("dur").get<double>() * 1000;
    if (name.rfind("turn ", 0) == 0) sums["number of turns"] += 1;
  }
  return sums;
}

void expect_sums(std::map<std::string, double> sums, const protocol::admin::UsageReport& usage) {
  EXPECT_EQ(sums["swap out"], static_cast<double>(usage.swapped_out));
  EXPECT_EQ(sums["swap in"], static_cast<double>(usage.swapped_in));
  EXPECT_EQ(sums["number of turns"], static_cast<double>(usage.turns));
  EXPECT_NEAR(sums["running"] + sums["dropping"] + sums["unresponsive"], static_cast<double>(usage.running_ns), 1000);
  EXPECT_NEAR(sums["waiting"], static_cast<double>(usage.waiting_ns), 1000);
  EXPECT_NEAR(sums["loading"], static_cast<double>(usage.swapping_ns), 1000);
}

TEST_F(RunCommand, ATracesSumsAreTheSchedulersOwnFigures) {
  const std::string recording = (directory_ / "recording").string();
  const std::string variables =
      "NVSHARE_TRACE=" + recording + " NVSHARE_SWITCH_TIME_MODE=fixed NVSHARE_SWITCH_TIME_FIXED=0.2 SIMGPU_CONTEXT_MB=1";
  const std::string job = DEMO_JOB " --bytes 144M --block 12M --steps 60 --compute-us 500 --seed 5";
  const std::string own_picture = (directory_ / "own.json").string();
  const Ran jobs = shell(
      "sh -c '" NVSHARECTL " run " + job + " & " NVSHARECTL " run --name traced --trace " + own_picture + " " + job + "; wait'", variables);
  EXPECT_EQ(jobs.exit_code, 0) << jobs.err;
  EXPECT_TRUE(has(jobs.err, "nvshare: wrote " + own_picture + ": 1 GPU, ")) << jobs.err;
  EXPECT_TRUE(has(content_of(own_picture), ": traced\"")) << jobs.err;
  const std::string live_picture = (directory_ / "live.json").string();
  protocol::admin::UsageReport usage;
  {
    auto admin = AdminConnection::open(runtime());
    ASSERT_TRUE(admin) << admin.error().text;
    for (int tries = 0; tries < 500; ++tries) {  // until the jobs' ends are known
      const auto status = admin->status();
      ASSERT_TRUE(status) << status.error().text;
      ASSERT_EQ(status->gpus.size(), 1u);
      usage = status->gpus[0].usage;
      if (status->clients.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const Ran live = nvsharectl("trace -o " + live_picture);
    EXPECT_EQ(live.exit_code, 0) << live.err;
    EXPECT_TRUE(has(live.out, "1 GPU, 2 clients")) << live.out;
    ASSERT_TRUE(admin->ask(protocol::admin::ShutdownRequest{}));
  }
  for (int tries = 0; tries < 500 && AdminConnection::open(runtime()); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));

  const std::string picture = (directory_ / "picture.json").string();
  const Ran ran = nvsharectl("trace " + recording + " -o " + picture);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(has(ran.out, "1 GPU, 2 clients")) << ran.out;
  EXPECT_GT(usage.swapped_out, 0);
  EXPECT_GT(usage.waiting_ns, 0);
  expect_sums(sums_of(picture), usage);
  expect_sums(sums_of(live_picture), usage);

  const Ran replayed = nvsharectl("replay " + recording);
  EXPECT_EQ(replayed.exit_code, 0) << replayed.out << replayed.err;
  EXPECT_TRUE(has(replayed.out, "\nthe same answers: ")) << replayed.out;
  std::string text = content_of(recording);
  const size_t grant = text.find("\"budget\":", text.find("\"action\":\"SendLock\""));
  ASSERT_NE(grant, std::string::npos) << "nobody was granted the GPU";
  text.insert(grant + std::strlen("\"budget\":"), "1");
  std::ofstream(recording, std::ios::trunc) << text;
  const Ran altered = nvsharectl("replay " + recording);
  EXPECT_EQ(altered.exit_code, 1) << altered.out << altered.err;
  const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(grant), '\n') + 1;
  EXPECT_TRUE(has(altered.out, "\nline " + std::to_string(line) + ", at ")) << altered.out;
  const auto difference = nlohmann::json::parse(nvsharectl("replay --json " + recording).out).at("difference");
  EXPECT_EQ(difference.at("line"), line);
  EXPECT_NE(difference.at("recorded"), difference.at("this_build"));

  const Ran wrong = nvsharectl("trace " NVSHARECTL);
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_TRUE(has(wrong.err, "line 1")) << wrong.err;
}

TEST_F(RunCommand, ACommandThatIsTakenForAProgramIsNamed) {
  const Ran ran = nvsharectl("run -- status --json", "PATH=/usr/bin:/bin");
  EXPECT_EQ(ran.exit_code, 127);
  EXPECT_TRUE(has(ran.err, "there is no program 'status'")) << ran.err;
  EXPECT_TRUE(has(ran.err, "nvsharectl status --json")) << ran.err;
}

TEST_F(RunCommand, AfterWaitsForTheEndOfAnother) {
  const std::string go = (directory_ / "go").string();
  const std::string done = (directory_ / "done").string();
  const std::string said = (directory_ / "said").string();
  // The second begins once the first is known, the first ends once the second says what it waits for.
  const Ran ran = shell("sh -c '" NVSHARECTL " run --quiet --name first -- sh -c \"touch " + go + "; until grep -q waits " + said +
                        "; do sleep 0.02; done; echo first > " + done + "\" & until [ -e " + go +
                        " ]; do sleep 0.02; done; " NVSHARECTL " run --quiet --after first -- cat " + done + " 2> " + said + "; wait'");
  EXPECT_EQ(ran.out, "first\n") << ran.err;
  EXPECT_TRUE(has(content_of(said), "waits for the end of 'first'")) << content_of(said);

  const Ran none = nvsharectl("run --after train -- echo begun");
  EXPECT_EQ(none.out, "begun\n");
  EXPECT_TRUE(has(none.err, "--after train: there is no such tenant, or it has ended")) << none.err;
  const Ran self = nvsharectl("run --name outer -- " NVSHARECTL " run --after outer --timeout 100ms -- echo begun");
  EXPECT_EQ(self.exit_code, 124) << self.err;
  EXPECT_EQ(self.out, "");
  EXPECT_TRUE(has(self.err, "it still waits for the end of 'outer'")) << self.err;
}

// Without words of the library that reads the arguments, and no line longer than the terminal.
TEST_F(RunCommand, HelpIsInPlainWordsAndFitsTheTerminal) {
  for (const char* command :
       {"", "run ", "top ", "set ", "trace ", "replay ", "pause ", "kill ", "logs ", "doctor ", "convert ", "demo "}) {
    const std::string help = asked(std::string(command) + "--help");
    for (const char* internal : {"TEXT", "INT ", "INT:", "FLOAT", "REQUIRED", " in [", "{false}"})
      EXPECT_FALSE(has(help, internal)) << help;
  }
  OnATerminal help(NVSHARECTL " run --help");  // of 100 columns
  EXPECT_TRUE(help.shows("Usage: nvsharectl run [options] [--] PROGRAM [arguments]"));
  EXPECT_TRUE(
      help.shows("--reserve-memory,--reserve SIZE\r\n                              GPU memory that the scheduler is to reserve for it on "
                 "its GPU, such as"));
  EXPECT_TRUE(help.shows("\r\n                              8Gi: "));
  EXPECT_EQ(help.exit_code(), 0);
}

TEST_F(RunCommand, AProgramThatWaitsForItsTurnSaysWhoHasTheGpu) {
  ASSERT_NO_FATAL_FAILURE(begin_first());
  OnATerminal second(variables_ + kLongTurns + NVSHARECTL " run --name second -- " + kFills + "20");  // it prints long after its turn came
  EXPECT_TRUE(second.shows(" for GPU 0: 'first' has it, "));
  EXPECT_TRUE(second.shows(" left, "));
  EXPECT_TRUE(second.shows("\033[0J"));  // it goes when the turn comes
  EXPECT_TRUE(second.shows("checksum"));
  EXPECT_EQ(second.exit_code(), 0);
  asked("kill first");
}

// Only the clients' socket is there, as for a user whom the scheduler takes no admin requests from.
TEST_F(RunCommand, WhatItWaitsForIsSaidWithoutRightsToo) {
  const fs::path view = directory_ / "view";
  fs::create_directory(view);
  ASSERT_NO_FATAL_FAILURE(begin_first());
  fs::create_directory_symlink(runtime() + "/client", view / "client");
  OnATerminal second(variables_ + kLongTurns + "NVSHARE_RUNTIME_DIR=" + view.string() + " " NVSHARECTL " run -- " + kFills + "10");
  EXPECT_TRUE(second.shows("nvshare: waits "));
  EXPECT_TRUE(second.shows(" s for "));
  EXPECT_TRUE(second.shows("\033[0J"));  // it goes when the turn comes
  EXPECT_TRUE(second.shows("checksum"));
  EXPECT_EQ(second.exit_code(), 0);
  asked("kill first");
}

TEST_F(RunCommand, WaitsForAFreeGpuWhichKillGives) {
  std::thread job([&] {
    const Ran ran = shell(NVSHARECTL " run --name busy -- sh -c '" DEMO_JOB
                                     " --bytes 32M --block 4M --steps 100000 --compute-us 1000 --seed 5 > /dev/null; echo ended $?'",
                          "SIMGPU_TIME_SCALE=1 timeout 60");
    EXPECT_NE(ran.exit_code, 0);
    EXPECT_FALSE(has(ran.out, "ended 0")) << ran.out;
  });
  const auto ask = [&](const std::string& arguments) {  // with files of its own
    const std::string file = (directory_ / "asked").string();
    const int status = std::system((variables_ + NVSHARECTL " " + arguments + " > " + file + " 2>&1 < /dev/null").c_str());
    return Ran{exit_code_of(status), content_of(file), ""};
  };
  for (int tries = 0; tries < 1000 && !has(ask("status --json").out, "\"state\":\"running\""); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Ran waits = ask("run --wait --timeout 100ms -- true");
  EXPECT_EQ(waits.exit_code, 124) << waits.out;
  EXPECT_TRUE(has(waits.out, "a free GPU (GPU 0: 'busy' has it, running")) << waits.out;
  EXPECT_FALSE(has(waits.out, "gives up")) << "its end is said once:\n" << waits.out;
  const Ran killed = ask("kill busy");
  EXPECT_EQ(killed.exit_code, 0) << killed.out;
  EXPECT_TRUE(has(killed.out, "SIGTERM to 2 processes of 'busy'")) << killed.out;
  job.join();
  EXPECT_EQ(ask("run --wait -- true").exit_code, 0);
  const Ran again = ask("kill busy");
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_TRUE(has(again.out, "there is no tenant 'busy'") || has(again.out, "has no process that runs")) << again.out;
  const Ran logs = ask("logs -n 1000");
  EXPECT_EQ(logs.exit_code, 0);
  EXPECT_TRUE(has(logs.out, "'busy'")) << logs.out;
}

TEST_F(RunCommand, StatusWithoutASchedulerSaysSo) {
  const Ran ran = nvsharectl("status");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_TRUE(has(ran.err, "no scheduler answers in " + runtime())) << ran.err;
}

}  // namespace
}  // namespace nvshare::cli
