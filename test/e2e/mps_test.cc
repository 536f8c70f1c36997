// mps = on: the scheduler starts, watches, restarts and ends an MPS daemon (a stand-in, test/simgpu/mps_control.cc) for each user whose
// programs ask for it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>

#include "e2e/harness/stage.h"
#include "scheduler/trace.h"

namespace nvshare::e2e {
namespace {

using protocol::admin::MpsReport;

StageOptions with_mps(const char* mps = "on") {
  StageOptions options;
  options.scheduler["NVSHARE_MPS"] = mps;
  options.scheduler["PATH"] = std::string(kStandInFolder) + ":/usr/bin:/bin";
  return options;
}

bool lives(pid_t pid) { return pid > 0 && kill(pid, 0) == 0; }

class Mps : public testing::Test {
 protected:
  explicit Mps(const StageOptions& options = with_mps()) : stage_(options) {}

  // A daemon is no child of the stage's: the scheduler ends it, once no program uses it.
  void TearDown() override {
    stage_.tell_to_stop();
    stage_.wait_until([&] { return clients().second == 0; }, moments());
    if (stage_.has_scheduler() && stage_.scheduler().running()) stage_.stop_scheduler();
  }

  std::optional<MpsReport> mps() {
    const auto report = stage_.status();
    if (!report || report->mps.empty()) return std::nullopt;
    return report->mps.front();
  }
  bool serves(uint64_t programs) {
    return stage_.wait_until([&] {
      const auto seen = mps();
      return seen && seen->state == "serving" && seen->programs == programs;
    });
  }
  // Clients that are attached, and all of them.
  std::pair<int, int> clients() {
    std::pair<int, int> counts{0, 0};
    if (const auto report = stage_.status()) {
      for (const auto& client : report->clients) {
        counts.first += client.mps;
        ++counts.second;
      }
    }
    return counts;
  }
  bool has_clients(int attached, int all) {
    return stage_.wait_until([&] { return clients() == std::pair(attached, all); });
  }
  Child& run(const std::string& name, const Environment& more = {}, const std::vector<std::string>& options = {}) {
    std::vector<std::string> command = {kControlPath, "run", "--name", name};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {kWorkerPath, "steady", "--work", "1000", "--stop", stage_.directory() + "/stop"});
    return stage_.start_command(name, command, false, more);
  }
  // The daemon of that trust group of ours; nothing until it serves so many programs.
  std::optional<MpsReport> mps_of(const std::string& group, uint64_t programs) {
    std::optional<MpsReport> found;
    stage_.wait_until([&] {
      const auto report = stage_.status();
      if (!report) return false;
      for (const MpsReport& mps : report->mps) {
        if (mps.group == group && mps.state == "serving" && mps.programs == programs) found = mps;
      }
      return found.has_value();
    });
    return found;
  }
  // Of the clients by the names of their tenants: under which group's daemon.
  std::map<std::string, std::string> groups() {
    std::map<std::string, std::string> found;
    if (const auto report = stage_.status()) {
      for (const auto& tenant : report->tenants) {
        for (const auto& client : report->clients) {
          if (client.tenant == tenant.id) found[tenant.name] = client.mps ? client.mps_group : "none";
        }
      }
    }
    return found;
  }

  Stage stage_;
};

TEST_F(Mps, ProgramsOfNvsharectlAreAttachedAndOthersAreNot) {
  stage_.start_scheduler();
  Child& first = run("first");
  Child& second = run("second");
  ASSERT_TRUE(has_clients(2, 2)) << stage_.raw_status();
  ASSERT_TRUE(serves(2));
  EXPECT_TRUE(first.logged("under MPS")) << first.log();
  Child& other = stage_.start("other", {"steady", "--work", "1000"});
  EXPECT_TRUE(has_clients(2, 3)) << stage_.raw_status();
  // It takes turns with the two that are, which have theirs together.
  EXPECT_TRUE(stage_.wait_until([&] {
    const auto seen = stage_.client_of(other.pid());
    return seen && seen->turns >= 5;
  })) << stage_.raw_status();
  const MpsReport report = *mps();
  EXPECT_EQ(report.user, geteuid());
  struct stat folder {};
  ASSERT_EQ(stat((stage_.runtime_directory() + "/mps/" + std::to_string(geteuid()) + "/pipe").c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 07777, 0700u);
  EXPECT_EQ(folder.st_uid, geteuid());
  stage_.tell_to_stop();
  stage_.expect_success(first);
  stage_.expect_success(second);
  stage_.expect_success(other);
  stage_.stop_scheduler();
  EXPECT_FALSE(lives(report.pid)) << "nobody uses it";
}

TEST_F(Mps, ADaemonThatIsKilledIsStartedAgain) {
  stage_.start_scheduler();
  Child& victim = run("victim");
  Child& other = stage_.start("other", {"steady", "--work", "1000"});
  ASSERT_TRUE(has_clients(1, 2)) << stage_.raw_status();
  ASSERT_TRUE(serves(1));
  const pid_t former = mps()->pid;
  ASSERT_EQ(kill(former, SIGKILL), 0);
  ASSERT_TRUE(stage_.wait_until([&] {
    const auto seen = mps();
    return seen && seen->state == "serving" && seen->pid != former;
  })) << stage_.raw_status();
  EXPECT_EQ(mps()->restarts, 1u);
  EXPECT_TRUE(victim.wait(patience())) << "its CUDA calls fail";
  EXPECT_TRUE(stage_.scheduler().logged("have to be started again")) << stage_.scheduler().log();
  EXPECT_TRUE(other.running());
  Child& again = run("again");
  EXPECT_TRUE(has_clients(1, 2)) << stage_.raw_status();
  stage_.tell_to_stop();
  stage_.expect_success(again);
  stage_.expect_success(other);
  stage_.forget(victim);
}

TEST_F(Mps, ASchedulerThatIsKilledLeavesItsDaemonToTheNext) {
  stage_.start_scheduler();
  Child& program = run("program");
  ASSERT_TRUE(has_clients(1, 1)) << stage_.raw_status();
  const pid_t daemon = mps()->pid;
  stage_.kill_scheduler();
  EXPECT_TRUE(lives(daemon));
  stage_.start_scheduler();
  EXPECT_TRUE(has_clients(1, 1)) << stage_.raw_status();
  EXPECT_TRUE(serves(1));
  EXPECT_EQ(mps()->pid, daemon);
  stage_.stop_scheduler();
  EXPECT_TRUE(lives(daemon)) << "a program uses it";
  stage_.start_scheduler();
  EXPECT_TRUE(has_clients(1, 1)) << stage_.raw_status();
  stage_.tell_to_stop();
  stage_.expect_success(program);
  ASSERT_TRUE(stage_.wait_until([&] { return clients().second == 0; }));
  stage_.stop_scheduler();
  EXPECT_TRUE(stage_.wait_until([&] { return !lives(daemon); }, moments())) << "no orphan";
}

TEST_F(Mps, ADaemonThatDoesNotStartIsSaidAndTheProgramRunsAllTheSame) {
  stage_.start_scheduler();
  const std::string pipes = stage_.runtime_directory() + "/mps/" + std::to_string(geteuid()) + "/pipe";
  ASSERT_EQ(mkdir((stage_.runtime_directory() + "/mps").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((stage_.runtime_directory() + "/mps/" + std::to_string(geteuid())).c_str(), 0700), 0);
  ASSERT_EQ(mkdir(pipes.c_str(), 0700), 0);
  std::ofstream(pipes + "/fails") << "\n";  // read by the stand-in
  Child& program = run("program");
  EXPECT_TRUE(has_clients(0, 1)) << stage_.raw_status();
  EXPECT_TRUE(program.logged("without MPS: ")) << program.log();
  EXPECT_TRUE(program.logged("MPS is not supported here")) << program.log();
  EXPECT_NE(mps()->trouble.find("MPS is not supported here"), std::string::npos) << mps()->trouble;
  stage_.tell_to_stop();
  stage_.expect_success(program);
}

TEST_F(Mps, ADirectoryOfTheUsersOwnIsLeftAlone) {
  stage_.start_scheduler();
  Child& program = run("program", {{"CUDA_MPS_PIPE_DIRECTORY", "/nowhere"}});
  EXPECT_TRUE(has_clients(0, 1)) << stage_.raw_status();
  EXPECT_FALSE(mps()) << "nobody has asked";
  EXPECT_FALSE(program.logged("MPS")) << program.log();
  stage_.tell_to_stop();
  stage_.expect_success(program);
}

// Another user's programs have a daemon of that user's, whose folder nobody else may enter.
TEST_F(Mps, EachUserHasADaemonOfItsOwn) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "takes root";
  // Programs and folders that user may not reach are not what is tested.
  for (const std::string& path : {stage_.directory()}) ASSERT_EQ(chmod(path.c_str(), 0711), 0);
  stage_.start_scheduler();
  const std::vector<std::string> as_nobody = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  std::vector<std::string> reach = as_nobody;
  reach.insert(reach.end(), {"/usr/bin/test", "-x", kControlPath, "-a", "-r", kLibraryPath});
  if (stage_.start_command("reach", reach, false).wait(patience()) != 0) GTEST_SKIP() << "user 65534 cannot run what was built";
  std::vector<std::string> command = as_nobody;
  command.insert(command.end(), {kControlPath, "run", "/usr/bin/env"});
  Child& theirs = stage_.start_command("theirs", command, false);
  EXPECT_EQ(theirs.wait(patience()), 0) << theirs.log();
  EXPECT_TRUE(theirs.logged("CUDA_MPS_PIPE_DIRECTORY=" + stage_.runtime_directory() + "/mps/65534/pipe")) << theirs.log();
  Child& ours = run("ours");
  ASSERT_TRUE(has_clients(1, 1)) << stage_.raw_status();
  const auto report = stage_.status();
  ASSERT_EQ(report->mps.size(), 2u);
  for (const MpsReport& mps : report->mps) {
    struct stat process {
    }, folder{};
    ASSERT_EQ(stat(("/proc/" + std::to_string(mps.pid)).c_str(), &process), 0);
    EXPECT_EQ(process.st_uid, mps.user);
    ASSERT_EQ(stat((stage_.runtime_directory() + "/mps/" + std::to_string(mps.user)).c_str(), &folder), 0);
    EXPECT_EQ(folder.st_uid, mps.user);
    EXPECT_EQ(folder.st_mode & 07777, 0700u);
  }
  EXPECT_EQ(report->mps[1].user, kNobody);
  stage_.tell_to_stop();
  stage_.expect_success(ours);
  stage_.stop_scheduler();
  for (const MpsReport& mps : report->mps) EXPECT_FALSE(lives(mps.pid));
}

// By the scheduler's trace: when its tenant was resumed, which comes after the signal, or it left. What it is granted then finds it dead.
bool had_a_turn_when_it_was_killed(const std::string& trace_file, uint64_t id) {
  bool has_turn = false;
  std::ifstream stream(trace_file);
  for (std::string line; std::getline(stream, line);) {
    auto decoded = scheduler::decode_trace(line);
    const auto* traced = decoded ? std::get_if<scheduler::TraceEvent>(&*decoded) : nullptr;
    if (traced == nullptr) continue;
    if (const auto* left = std::get_if<policy::ClientLeft>(&traced->event); left && left->client == id) return has_turn;
    if (const auto* suspended = std::get_if<policy::TenantSuspended>(&traced->event); suspended && !suspended->suspended) return has_turn;
    if (const auto* released = std::get_if<policy::LockReleased>(&traced->event); released && released->client == id) has_turn = false;
    for (const policy::Action& action : traced->answers) {
      if (const auto* granted = std::get_if<policy::SendLock>(&action); granted && granted->client == id) has_turn = true;
    }
  }
  ADD_FAILURE() << "client " << id << " has not left";
  return has_turn;
}

// Killed while its kernels run, it would take the others down with it (docs/adr/0021).
TEST_F(Mps, NvsharectlKillEndsTheTurnFirst) {
  stage_.start_scheduler();
  Child& victim = run("victim");
  Child& other = run("other");
  ASSERT_TRUE(has_clients(2, 2)) << stage_.raw_status();
  const auto runs = [&](const std::string& name) {
    const auto report = stage_.status();
    if (!report) return uint64_t{0};
    for (const auto& tenant : report->tenants) {
      for (const auto& client : report->clients) {
        if (tenant.name == name && client.tenant == tenant.id && client.state == "running" && !tenant.paused) return client.id;
      }
    }
    return uint64_t{0};
  };
  ASSERT_TRUE(stage_.wait_until([&] { return runs("victim") != 0; })) << stage_.raw_status();
  const uint64_t id = runs("victim");
  Child& killed = stage_.start_command("kill", {kControlPath, "kill", "--signal", "KILL", "victim"}, false);
  EXPECT_EQ(killed.wait(patience()), 0) << killed.log();
  EXPECT_TRUE(victim.wait(patience()));
  stage_.forget(victim);
  ASSERT_TRUE(has_clients(1, 1)) << stage_.raw_status();

  // One that goes on all the same, as it ignores the signal, has its turns again.
  Child& deaf = stage_.start_command("deaf",
                                     {kControlPath, "run", "--name", "deaf", "/bin/sh", "-c", "trap '' USR1; exec \"$@\"", "sh",
                                      kWorkerPath, "steady", "--work", "1000", "--stop", stage_.directory() + "/stop"},
                                     false);
  ASSERT_TRUE(stage_.wait_until([&] { return runs("deaf") != 0; })) << stage_.raw_status();
  Child& ignored = stage_.start_command("kill-deaf", {kControlPath, "kill", "--signal", "USR1", "deaf"}, false);
  EXPECT_EQ(ignored.wait(patience()), 0) << ignored.log();
  EXPECT_TRUE(stage_.wait_until([&] { return runs("deaf") != 0; })) << stage_.raw_status();
  stage_.tell_to_stop();
  stage_.expect_success(other);
  stage_.expect_success(deaf);
  stage_.stop_scheduler();  // its trace is whole then
  EXPECT_FALSE(had_a_turn_when_it_was_killed(stage_.trace_file(), id));
}

// Programs of one user that name different groups have a daemon each, and share nothing of it; the scheduler's restart changes none of
// that.
TEST_F(Mps, ProgramsThatNameAGroupShareADaemonWithThoseThatNameItToo) {
  stage_.start_scheduler();
  Child& first = run("first", {}, {"--trust-group", "team"});
  Child& second = run("second", {{"NVSHARE_TRUST_GROUP", "team"}});
  Child& other = run("other", {{"NVSHARE_TRUST_GROUP", "team"}}, {"--trust-group", "others"});
  Child& plain = run("plain");
  const auto team = mps_of("team", 2), others = mps_of("others", 1), unnamed = mps_of("", 1);
  ASSERT_TRUE(team && others && unnamed) << stage_.raw_status();
  ASSERT_TRUE(has_clients(4, 4)) << stage_.raw_status();
  const std::map<std::string, std::string> expected = {{"first", "team"}, {"second", "team"}, {"other", "others"}, {"plain", ""}};
  EXPECT_EQ(groups(), expected);
  EXPECT_EQ((std::set<pid_t>{team->pid, others->pid, unnamed->pid}).size(), 3u);
  EXPECT_TRUE(first.logged("under MPS (trust group team)")) << first.log();
  EXPECT_TRUE(stage_.scheduler().logged("trust group others: its daemon")) << stage_.scheduler().log();
  const std::string ours = stage_.runtime_directory() + "/mps/" + std::to_string(geteuid());
  EXPECT_EQ(access((ours + "/group-team/pipe/control").c_str(), F_OK), 0);

  stage_.kill_scheduler();
  stage_.start_scheduler();
  ASSERT_TRUE(has_clients(4, 4)) << stage_.raw_status();
  const auto team_again = mps_of("team", 2), others_again = mps_of("others", 1);
  ASSERT_TRUE(team_again && others_again) << stage_.raw_status();
  EXPECT_EQ(team_again->pid, team->pid);
  EXPECT_EQ(others_again->pid, others->pid);
  EXPECT_EQ(groups(), expected);

  ASSERT_EQ(kill(others->pid, SIGKILL), 0);  // the fate of one group is nobody else's
  EXPECT_TRUE(other.wait(patience()));
  stage_.forget(other);
  EXPECT_TRUE(has_clients(3, 3)) << stage_.raw_status();
  for (Child* child : {&first, &second, &plain}) EXPECT_TRUE(child->running());
  stage_.tell_to_stop();
  for (Child* child : {&first, &second, &plain}) stage_.expect_success(*child);
  stage_.stop_scheduler();
  EXPECT_TRUE(stage_.wait_until([&] { return !lives(team->pid); }, moments())) << "nobody uses it";
  EXPECT_NE(access((ours + "/group-team").c_str(), F_OK), 0) << "names that come once leave nothing behind";
  EXPECT_NE(access((ours + "-team.out").c_str(), F_OK), 0);
  EXPECT_NE(access((ours + "-team.daemon").c_str(), F_OK), 0);
}

// Nobody joins another user's, by name or otherwise.
TEST_F(Mps, AGroupOfThatNameOfAnotherUserIsAnother) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root";
  ASSERT_EQ(chmod(stage_.directory().c_str(), 0711), 0);
  stage_.start_scheduler();
  const std::vector<std::string> as_nobody = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  std::vector<std::string> reach = as_nobody;
  reach.insert(reach.end(), {"/usr/bin/test", "-x", kControlPath, "-a", "-r", kLibraryPath});
  if (stage_.start_command("reach", reach, false).wait(patience()) != 0) GTEST_SKIP() << "user 65534 cannot run what was built";
  Child& ours = run("ours", {}, {"--trust-group", "team"});
  ASSERT_TRUE(mps_of("team", 1)) << stage_.raw_status();
  std::vector<std::string> command = as_nobody;
  command.insert(command.end(), {kControlPath, "run", "--trust-group", "team", "/usr/bin/env"});
  Child& theirs = stage_.start_command("theirs", command, false);
  EXPECT_EQ(theirs.wait(patience()), 0) << theirs.log();
  EXPECT_TRUE(theirs.logged("CUDA_MPS_PIPE_DIRECTORY=" + stage_.runtime_directory() + "/mps/65534/group-team/pipe")) << theirs.log();
  const auto report = stage_.status();
  std::set<uint32_t> users;
  for (const MpsReport& mps : report->mps) {
    EXPECT_EQ(mps.group, "team");
    users.insert(mps.user);
  }
  EXPECT_EQ(users, (std::set<uint32_t>{geteuid(), 65534}));
  stage_.tell_to_stop();
  stage_.expect_success(ours);
}

// Daemons are ended user by user at the same time: they were ended one after another, within 5 s for all.
TEST_F(Mps, AUserWhoStoppedHisDaemonsLeavesNoneOfOthersBehind) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root";
  ASSERT_EQ(chmod(stage_.directory().c_str(), 0711), 0);
  stage_.start_scheduler();
  for (const std::string group : {"a", "b", "c"}) {
    Child& child = stage_.start_command("run-" + group, {kControlPath, "run", "--trust-group", group, "/bin/true"}, false);
    ASSERT_EQ(child.wait(patience()), 0) << child.log();
  }
  std::vector<std::string> command = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                      kControlPath,       "run",           "/bin/true"};
  Child& theirs = stage_.start_command("theirs", command, false);
  if (theirs.wait(patience()) != 0) GTEST_SKIP() << "user 65534 cannot run what was built";
  const auto report = stage_.status();
  ASSERT_TRUE(report);
  std::vector<pid_t> stopped;
  pid_t other = 0;
  for (const MpsReport& mps : report->mps) {
    if (mps.user == 65534) {
      other = mps.pid;
    } else {
      stopped.push_back(mps.pid);
    }
  }
  ASSERT_EQ(stopped.size(), 3u);
  ASSERT_NE(other, 0);
  for (const pid_t pid : stopped) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  stage_.stop_scheduler();
  EXPECT_FALSE(lives(other)) << stage_.scheduler().log();
  for (const pid_t pid : stopped) kill(pid, SIGKILL);
}

TEST_F(Mps, ATrustGroupThatCannotHoldIsSaid) {
  stage_.start_scheduler();
  Child& both = run("both", {{"CUDA_MPS_PIPE_DIRECTORY", "/nowhere"}}, {"--trust-group", "team"});
  EXPECT_EQ(both.wait(patience()), 125) << both.log();
  EXPECT_TRUE(both.logged("trust group team: CUDA_MPS_PIPE_DIRECTORY is set already, to '/nowhere'")) << both.log();
  Child& bad = run("bad", {{"NVSHARE_TRUST_GROUP", "../65534"}});
  EXPECT_EQ(bad.wait(patience()), 125) << bad.log();
  EXPECT_TRUE(bad.logged("NVSHARE_TRUST_GROUP: '../65534' is no name of a trust group; accepted: 1 to 32 letters")) << bad.log();
  // Within a run, another run may name another group.
  Child& inner = stage_.start_command(
      "inner", {kControlPath, "run", "--trust-group", "outer", kControlPath, "run", "--trust-group", "inner", "/usr/bin/env"}, false);
  EXPECT_EQ(inner.wait(patience()), 0) << inner.log();
  EXPECT_TRUE(inner.logged("/group-inner/pipe")) << inner.log();
  const auto report = stage_.status();
  ASSERT_TRUE(report);
  for (const MpsReport& mps : report->mps) EXPECT_NE(mps.group, "team") << "nobody has asked for it";
}

// It would put programs that name different groups under one daemon: without MPS they are apart.
TEST_F(Mps, ASchedulerOfTheVersionBeforeIsToldOfNoGroup) {
  stage_.start_scheduler(previous_scheduler());
  Child& named = run("named", {}, {"--trust-group", "team"});
  EXPECT_TRUE(has_clients(0, 1)) << stage_.raw_status();
  EXPECT_TRUE(named.logged("without MPS: this scheduler is of a release that knows no trust groups")) << named.log();
  Child& plain = run("plain");
  EXPECT_TRUE(has_clients(1, 2)) << stage_.raw_status();
  stage_.tell_to_stop();
  stage_.expect_success(named);
  stage_.expect_success(plain);
}

class MpsOff : public Mps {
 protected:
  MpsOff() : Mps(with_mps("off")) {}
};

TEST_F(MpsOff, NobodyHearsOfIt) {
  stage_.start_scheduler();
  Child& program = run("program");
  EXPECT_TRUE(has_clients(0, 1)) << stage_.raw_status();
  EXPECT_FALSE(program.logged("MPS")) << program.log();
  EXPECT_FALSE(mps());
  Child& named = run("named", {}, {"--trust-group", "team"});
  EXPECT_TRUE(has_clients(0, 2)) << stage_.raw_status();
  EXPECT_TRUE(named.logged("without MPS: the scheduler's setting mps is off")) << named.log();
  stage_.tell_to_stop();
  stage_.expect_success(program);
  stage_.expect_success(named);
}

// Without MPS: programs that fit together have the GPU in turns, and nothing moves.
TEST(Sharing, InTurnsProgramsThatFitHaveASliceEach) {
  StageOptions options;
  options.scheduler["NVSHARE_SHARING"] = "turns";
  Stage stage(options);
  stage.start_scheduler();
  std::vector<Child*> both = {&stage.start("first", {"steady", "--work", "1000"}), &stage.start("second", {"steady", "--work", "1000"})};
  EXPECT_TRUE(stage.wait_until([&] {
    const auto report = stage.status();
    return report && report->clients.size() == 2 && report->clients[0].turns >= 5 && report->clients[1].turns >= 5;
  })) << stage.raw_status();
  if (const auto report = stage.status()) {
    for (const auto& client : report->clients) EXPECT_EQ(client.swapped_out_total, 0) << client.program;
  }
  stage.tell_to_stop();
  for (Child* child : both) stage.expect_success(*child);
}

// Both ways are tried on what the programs submit, the choice is told, and a tenant may be left out of it.
TEST(Sharing, AutoMeasuresWhichWayGetsMoreDone) {
  StageOptions options;
  options.scheduler["NVSHARE_SHARING"] = "auto";
  Stage stage(options);
  stage.start_scheduler();
  std::vector<Child*> both = {&stage.start("first", {"steady", "--work", "1000"}), &stage.start("second", {"steady", "--work", "1000"})};
  EXPECT_TRUE(stage.wait_until([&] {
    const auto report = stage.status();
    return report && report->gpus.size() == 1 && report->gpus[0].sharing_trials >= 1;
  })) << stage.raw_status();
  if (const auto report = stage.status()) {
    EXPECT_GT(report->gpus[0].sharing_percent, 50) << stage.raw_status();
    EXPECT_LT(report->gpus[0].sharing_percent, 400) << stage.raw_status();
    for (const auto& client : report->clients) EXPECT_EQ(client.swapped_out_total, 0) << client.program;
  }
  stage.tell_to_stop();
  for (Child* child : both) stage.expect_success(*child);
}

}  // namespace
}  // namespace nvshare::e2e
