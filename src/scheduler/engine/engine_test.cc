// The engine without sockets: pauses, limits, registrations and restarts, and what it sends.
#include <signal.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

TEST_F(EngineTest, APausedTenantGetsNoTurnsUntilItIsResumed) {
  join(1, 1001, kGiB, 0);
  join(2, 1002, kGiB, 0);
  protocol::admin::SetRequest change;
  change.tenant = std::to_string(client(0).tenant);
  change.paused = true;
  ASSERT_TRUE(engine().set(change, ++now_));
  send(1, protocol::ReqLock{1});
  send(2, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
  EXPECT_TRUE(packets_.last<protocol::LockOk>(2));
  EXPECT_EQ(client(0).waiting_for, "its tenant to be resumed: it was paused");
  EXPECT_TRUE(status_of(engine().parts(), now_).tenants.at(0).paused);
  EXPECT_FALSE(status_of(engine().parts(), now_).tenants.at(1).paused);
  change.paused = false;
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(packets_.last<protocol::LockOk>(1));

  change.paused = true;
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(packets_.last<protocol::DropLock>(1));
}

TEST_F(EngineTest, ASuspendedJobIsPausedUntilItGoesOn) {
  protocol::admin::JobRequest step;
  step.job = 7;
  step.pid = getpid();
  ASSERT_TRUE(engine().orders().tell_of_job(step, now_));
  const uint64_t self = come(1, getpid()).client_id;
  protocol::admin::JobRequest suspended;
  suspended.job = 7;
  suspended.suspended = true;
  ASSERT_TRUE(engine().orders().tell_of_job(suspended, ++now_));
  EXPECT_TRUE(status_of(engine().parts(), now_).tenants.at(0).paused);

  engine_.reset();  // its processes cannot tell the next scheduler
  come(2, getpid(), self);
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  send(2, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(2));
  suspended.suspended = false;
  ASSERT_TRUE(engine().orders().tell_of_job(suspended, ++now_));
  EXPECT_TRUE(packets_.last<protocol::LockOk>(2));

  // An administrator's pause is another.
  protocol::admin::SetRequest change;
  change.tenant = "job=7";
  change.paused = true;
  ASSERT_TRUE(engine().set(change, ++now_));
  ASSERT_TRUE(engine().orders().tell_of_job(suspended, ++now_));
  EXPECT_TRUE(status_of(engine().parts(), now_).tenants.at(0).paused);
}

TEST_F(EngineTest, APauseOutlivesTheScheduler) {
  ASSERT_TRUE(engine().orders().add_run({getpid(), "train", 0}));
  const uint64_t self = come(1, getpid()).client_id;
  protocol::admin::SetRequest change;
  change.tenant = "train";
  change.paused = true;
  ASSERT_TRUE(engine().set(change, ++now_));

  engine_.reset();
  come(2, getpid(), self);
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  ASSERT_TRUE(status_of(engine().parts(), now_).tenants.at(0).paused);
  send(2, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(2));
  change.paused = false;
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(packets_.last<protocol::LockOk>(2));
}

TEST_F(EngineTest, AReleaseOfAnotherSchedulersLockIsIgnored) {
  join(1, 1001, kGiB, 0);
  send(1, protocol::ReqLock{1});
  auto lock = packets_.last<protocol::LockOk>(1);
  ASSERT_TRUE(lock);
  EXPECT_EQ(lock->grant.epoch, 77u);
  protocol::LockReleased stale{{76, lock->grant.grant}, 1, {}, 0, 0, 0, {uint64_t(kGiB), 0, 0, 0}};
  send(1, stale);
  EXPECT_NE(client(0).state, "idle");
  stale.grant.epoch = 77;
  send(1, stale);
  EXPECT_EQ(client(0).state, "idle");
}

TEST_F(EngineTest, AProcessThatRegistersAgainReplacesItsFormerSelfAndNobodyElse) {
  join(1, 1001, kGiB, 0);
  join(2, 1002, kGiB, 0);
  for (const ConnectionId again : {3, 4}) {  // its connection broke, and nobody has noticed
    join(again, 1001, kGiB, 0);
    std::multiset<int64_t> pids;
    for (const protocol::admin::ClientReport& one : status_of(engine().parts(), ++now_).clients) pids.insert(one.pid);
    EXPECT_EQ(pids, (std::multiset<int64_t>{1001, 1002}));
  }
  send(1, protocol::ReqLock{1});  // of the connection that it left behind
  send(3, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
  EXPECT_FALSE(packets_.last<protocol::LockOk>(3));
  send(4, protocol::ReqLock{1});
  EXPECT_TRUE(packets_.last<protocol::LockOk>(4));
}

TEST_F(EngineTest, MessagesOfAClosedConnectionAreIgnored) {
  join(1, 1001, kGiB, 0);
  engine().received(1, {}, ++now_);
  EXPECT_EQ(packets_.closed, std::vector<ConnectionId>{1});
  EXPECT_EQ(engine().parts().clients.all().size(), 0u);
  send(1, protocol::ReqLock{1});
  engine().disconnected(1, "test", ++now_);
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
}

// What the node reserves for runs stays within the GPU's 16 GiB times the ratio; limits of others take nothing of it.
TEST_F(EngineTest, ReservationsBeyondTheRatioAreRefusedAndLimitsAreNot) {
  const pid_t other = fork();
  if (other == 0) {
    for (;;) pause();
  }
  protocol::admin::TenantRequest run{getpid(), "train", 10 * kGiB};
  run.gpu_memory_reserved = 10 * kGiB;
  ASSERT_TRUE(engine().orders().add_run(run));
  protocol::admin::TenantRequest second{other, "serve", 7 * kGiB};
  second.gpu_memory_reserved = 7 * kGiB;
  second.gpus = {"GPU-of-which-nobody-knows"};
  ASSERT_TRUE(engine().orders().add_run(second));
  auto limited = test_registration(kGiB);
  limited.memory_limit = static_cast<uint64_t>(12 * kGiB);
  Peer stranger;
  stranger.pid = 1;
  engine().connected(1, std::move(stranger));
  send(1, limited);
  EXPECT_EQ(packets_.last<protocol::Registered>(1)->memory_limit, static_cast<uint64_t>(12 * kGiB));
  const auto ours = come(2, getpid());
  EXPECT_EQ(ours.memory_limit, static_cast<uint64_t>(10 * kGiB));
  EXPECT_STREQ(ours.tenant_name, "train");
  EXPECT_NE(ours.tenant, 0u);
  const auto refusal = [&](ConnectionId connection) {
    Peer peer;
    peer.pid = other;
    peer.start_time = start_time_of(other);
    engine().connected(connection, std::move(peer));
    engine().received(connection, protocol::encode(test_registration(kGiB)).span(), ++now_);
    const auto refused = packets_.last<protocol::Refused>(connection);
    return refused ? std::string(refused->reason) + (refused->barred != 0 ? " barred" : "") : std::string();
  };
  EXPECT_NE(refusal(3).find("; accepted: up to 6 GiB (others have 10 GiB; NVSHARE_GPU_MEMORY_OVERSUB_RATIO is 1, of 16 GiB)"),
            std::string::npos)
      << refusal(4);
  EXPECT_NE(refusal(5).find("barred"), std::string::npos);
  second.gpus = {engine().parts().gpus[0].uuid_text};
  const auto too_much = engine().orders().add_run(second);
  ASSERT_FALSE(too_much) << "before a program of it begins, too";
  EXPECT_NE(std::string(too_much.error().text).find("no room for a reservation of 7 GiB on GPU 0 (" + second.gpus[0] + "); accepted: "),
            std::string::npos)
      << too_much.error().text;
  protocol::admin::SetRequest change;
  change.settings["gpu_memory_oversub_ratio"] = "1.1";
  ASSERT_TRUE(engine().set(change, now_));
  EXPECT_EQ(refusal(6), "");
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

// Ids are small numbers: whoever claims one that was another process's gains neither its run nor its limits.
TEST_F(EngineTest, AnErrorOfOurOwnEndsOnlyTheConnectionThatBroughtItAbout) {
  join(1, 100, kGiB, 0);
  join(2, 200, kGiB, 0);
  look_fails_ = true;
  send(1, protocol::ArenaRequest{1, 64 << 20, 0, 0, {}});
  look_fails_ = false;
  EXPECT_EQ(packets_.closed, std::vector<ConnectionId>{1});
  ASSERT_EQ(status_of(engine().parts(), now_).clients.size(), 1u);
  EXPECT_EQ(status_of(engine().parts(), now_).clients[0].pid, 200);
  send(2, protocol::ReqLock{1});
  EXPECT_TRUE(packets_.last<protocol::LockOk>(2));
  join(3, 100, kGiB, 0);
  look_fails_ = true;
  engine().disconnected(2, "it ended", ++now_);  // nor does a departure that fails
  look_fails_ = false;
  send(3, protocol::ReqLock{1});
  EXPECT_TRUE(packets_.last<protocol::LockOk>(3));
}

TEST_F(EngineTest, AGuessedIdBringsNothing) {
  protocol::admin::TenantRequest run{getpid(), "train", 4 * kGiB};
  run.gpu_core_limit = 100;
  ASSERT_TRUE(engine().orders().add_run(run));
  const uint64_t ours = come(1, getpid()).client_id;
  engine_.reset();
  const auto stranger = come(2, 1, ours, {.node_limit = kGiB});
  EXPECT_NE(stranger.client_id, ours);
  EXPECT_EQ(stranger.memory_limit, 0u) << "neither the run's limit nor the one that it claims to have been told";
  const auto back = come(3, getpid(), ours);
  EXPECT_EQ(back.client_id, ours);
  EXPECT_EQ(back.memory_limit, static_cast<uint64_t>(4 * kGiB));
}

// Two processes of one run near its memory limit; the scheduler is restarted while one of them is stopped.
TEST_F(EngineTest, AfterARestartRunsAndLimitsAreKnownAndWhoIsNotBackKeepsItsLease) {
  const pid_t stopped = fork();
  if (stopped == 0) {
    for (;;) pause();
  }
  const auto ask = [&](ConnectionId connection, uint64_t request, int64_t bytes) {
    send(connection, protocol::AskHeadroom{request, static_cast<uint64_t>(bytes), 0});
    const auto answer = packets_.last<protocol::Headroom>(connection);
    return answer && answer->request == request && answer->granted != 0;
  };
  protocol::admin::TenantRequest run{getpid(), "train", 4 * kGiB};
  run.gpu_core_limit = 100;
  ASSERT_TRUE(engine().orders().add_run(run));
  come(1, stopped);
  const uint64_t self = come(2, getpid()).client_id;
  EXPECT_FALSE(ask(2, 1, kGiB)) << "all of it is leased to the other";
  const auto recall = packets_.last<protocol::RecallHeadroom>(1);
  ASSERT_TRUE(recall);
  send(1, protocol::HeadroomReturned{recall->recall, static_cast<uint64_t>(kGiB), static_cast<uint64_t>(2 * kGiB)});
  EXPECT_EQ(packets_.last<protocol::Headroom>(2)->granted, 1);
  protocol::admin::SetRequest change;
  change.tenant = "train";
  change.gpu_core_limit = 40;
  ASSERT_TRUE(engine().set(change, now_));
  engine().housekeep(now_);

  engine_.reset();
  const auto back = come(12, getpid(), self, {.lease = static_cast<uint64_t>(kGiB)});
  EXPECT_EQ(back.client_id, self);
  EXPECT_EQ(back.memory_limit, static_cast<uint64_t>(4 * kGiB));
  ASSERT_EQ(status_of(engine().parts(), now_).tenants.size(), 1u);
  EXPECT_EQ(status_of(engine().parts(), now_).tenants[0].name, "train");
  EXPECT_EQ(status_of(engine().parts(), now_).tenants[0].gpu_core_limit, 40);
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  EXPECT_FALSE(ask(12, 5, kGiB)) << "the stopped process may have charged it";
  EXPECT_TRUE(packets_.last<protocol::Headroom>(12));
  engine().housekeep(now_);
  EXPECT_FALSE(ask(12, 6, kGiB));
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
  engine().housekeep(++now_);
  EXPECT_TRUE(ask(12, 7, kGiB)) << "it has ended";
}

TEST(GpuLockTest, OneOwnerAtATimeAndItsNameIsTold) {
  TestFolder folder;
  std::string directory = folder.path() + "/lock";
  {
    auto first = GpuLock::acquire(directory, "GPU-1", "/run/a");
    ASSERT_TRUE(first) << first.error().text;
    auto second = GpuLock::acquire(directory, "GPU-1", "/run/b");
    ASSERT_FALSE(second);
    EXPECT_NE(std::string(second.error().text).find("/run/a"), std::string::npos);
    EXPECT_NE(std::string(second.error().text).find(std::to_string(getpid())), std::string::npos);
    EXPECT_TRUE(GpuLock::acquire(directory, "GPU-2", "/run/b"));
  }
  EXPECT_TRUE(GpuLock::acquire(directory, "GPU-1", "/run/b"));
  EXPECT_FALSE(GpuLock::acquire("/proc/nowhere", "GPU-1", "/run/b"));
}

// Made-up ones left a lock file, a descriptor and an entry, for ever.
TEST_F(EngineTest, WhereNvmlRunsGpusThatItDoesNotListAreRefused) {
  join(1, 1001, kGiB, kGiB);
  for (uint8_t gpu = 2; gpu < 200; ++gpu) {
    engine().connected(gpu, Peer{});
    send(gpu, test_registration(0, gpu));
    const auto refused = packets_.last<protocol::Refused>(gpu);
    ASSERT_TRUE(refused);
    EXPECT_NE(std::string(refused->reason).find("is no GPU of this machine; NVML lists GPU 0 (GPU-01010101) and 0 MIG devices"),
              std::string::npos)
        << refused->reason;
  }
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/GPU-02020202-0202-0202-0202-020202020202.lock"));
}

TEST_F(EngineTest, AMigDeviceThatWasMadeMeanwhileIsFound) {
  int asked = 0;
  list_gpus_ = [&] { ++asked; };
  engine().connected(1, Peer{});
  engine().connected(2, Peer{});
  send(1, test_registration(0, 7));
  send(2, test_registration(0, 8));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(packets_.last<protocol::Registered>(1)) << "nobody knows yet";
  GpuUuid made;
  made.fill(7);
  engine().gpus_listed({made}, ++now_);
  EXPECT_TRUE(packets_.last<protocol::Registered>(1));
  EXPECT_TRUE(packets_.last<protocol::Refused>(2));
  engine().connected(3, Peer{});
  send(3, test_registration(0, 7));
  EXPECT_TRUE(packets_.last<protocol::Registered>(3)) << "without asking again";
  EXPECT_EQ(asked, 2);
}

TEST_F(EngineTest, WithoutNvmlEachAccountNamesAFewGpus) {
  has_nvml_ = false;
  settings_.gpus_per_user = 3;
  const auto name_gpu = [&](ConnectionId connection, const std::string& account, uint8_t gpu) {
    Peer peer;
    peer.account = account;
    engine().connected(connection, std::move(peer));
    send(connection, test_registration(0, gpu));
    return packets_.last<protocol::Registered>(connection).has_value();
  };
  for (uint8_t gpu = 1; gpu < 100; ++gpu) EXPECT_EQ(name_gpu(gpu, "user 1000", gpu), gpu <= 3);
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.size(), 3u);
  EXPECT_TRUE(name_gpu(200, "user 1000", 2)) << "one that is known";
  EXPECT_TRUE(name_gpu(201, "user 1001", 50));
}

// The exporter never answers: the daemon grew by 81 bytes each, and a neighbour's grant took a second.
TEST_F(EngineTest, ImportsFromOneselfAreBounded) {
  join(1, 1001, kGiB, kGiB);
  const uint64_t self = packets_.last<protocol::Registered>(1)->client_id;
  for (uint64_t request = 1; request <= 2000; ++request) send(1, protocol::Import{request, self, 1, {}});
  int64_t asked = 0;
  int64_t failed = 0;
  for (const protocol::Packet& packet : packets_.sent[1]) {
    const auto type = *protocol::decode_type(packet.span());
    asked += type == protocol::MessageType::kExportWanted;
    failed += type == protocol::MessageType::kImported;
  }
  EXPECT_EQ(asked, bounds::kUnansweredImports);
  EXPECT_EQ(failed, 2000 - asked) << "each is told";
  EXPECT_EQ(static_cast<protocol::ExportStatus>(packets_.last<protocol::Imported>(1)->status), protocol::ExportStatus::kFailed);
}

// A process of a tenant with a limit that went past the library had what it liked, and nobody knew.
TEST_F(EngineTest, AProcessOfALimitedTenantThatIsNoClientIsNamed) {
  const pid_t bypassing = fork();
  if (bypassing == 0) {
    while (true) pause();
  }
  protocol::admin::TenantRequest run{getpid(), "train", 4 * kGiB};
  ASSERT_TRUE(engine().orders().add_run(run));
  come(1, getpid());
  const auto look = [&](bool bypasses, int samples) {
    for (int i = 0; i < samples; ++i) {
      std::vector<ProcessMemory> processes = {{getpid(), kGiB}};
      if (bypasses) processes.push_back({bypassing, 6 * kGiB});
      sample((bypasses ? 7 : 1) * kGiB, processes);
    }
  };
  look(true, 30);  // 7.5 s: a program may be about to become a client
  EXPECT_TRUE(status_of(engine().parts(), now_).bypasses.empty());
  look(true, 30);
  const auto seen = status_of(engine().parts(), now_).bypasses;
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].pid, bypassing);
  EXPECT_EQ(seen[0].tenant, "train");
  EXPECT_EQ(seen[0].used, 6 * kGiB);
  EXPECT_FALSE(seen[0].turns_refused) << "unless the node says so";
  send(1, protocol::ReqLock{1});
  EXPECT_TRUE(packets_.last<protocol::LockOk>(1));
  kill(bypassing, SIGKILL);
  waitpid(bypassing, nullptr, 0);
  look(false, 8);
  EXPECT_TRUE(status_of(engine().parts(), now_).bypasses.empty());
}

TEST_F(EngineTest, ATenantThatGoesPastTheLibraryMayGetNoTurns) {
  settings_.bypass = Bypass::kRefuseTurns;
  const pid_t bypassing = fork();
  if (bypassing == 0) {
    while (true) pause();
  }
  protocol::admin::TenantRequest run{getpid(), "train", 4 * kGiB};
  ASSERT_TRUE(engine().orders().add_run(run));
  come(1, getpid());
  for (int i = 0; i < 60; ++i) sample(7 * kGiB, {{getpid(), kGiB}, {bypassing, 6 * kGiB}});
  send(1, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
  send(1, protocol::AskWhyWaiting{1});
  EXPECT_NE(std::string(packets_.last<protocol::WhyWaiting>(1)->text).find("past nvshare"), std::string::npos);
  EXPECT_TRUE(status_of(engine().parts(), now_).bypasses.at(0).turns_refused);
  kill(bypassing, SIGKILL);
  waitpid(bypassing, nullptr, 0);
  for (int i = 0; i < 8; ++i) sample(kGiB, {{getpid(), kGiB}});
  EXPECT_TRUE(packets_.last<protocol::LockOk>(1)) << "it goes on by itself";
}

// One that had the GPU when it was found kept it until somebody else wanted it.
TEST_F(EngineTest, ATurnOfATenantThatGoesPastTheLibraryMayEnd) {
  settings_.bypass = Bypass::kRefuseTurns;
  const pid_t bypassing = fork();
  if (bypassing == 0) {
    while (true) pause();
  }
  protocol::admin::TenantRequest run{getpid(), "train", 4 * kGiB};
  ASSERT_TRUE(engine().orders().add_run(run));
  come(1, getpid());
  send(1, protocol::ReqLock{1});
  const auto granted = packets_.last<protocol::LockOk>(1);
  ASSERT_TRUE(granted);
  const auto look = [&](bool bypasses) {
    std::vector<ProcessMemory> processes = {{getpid(), kGiB}};
    if (bypasses) processes.push_back({bypassing, 6 * kGiB});
    for (int i = 0; i < 60; ++i) sample((bypasses ? 7 : 1) * kGiB, processes);
  };
  look(true);
  const auto dropped = packets_.last<protocol::DropLock>(1);
  ASSERT_TRUE(dropped);
  EXPECT_EQ(dropped->grant.grant, granted->grant.grant);
  send(1, protocol::LockReleased{granted->grant, 0, {}, 0, 0, 0, {uint64_t{kGiB}, 0, 0, 0, 0}});
  send(1, protocol::ReqLock{2});
  EXPECT_EQ(packets_.last<protocol::LockOk>(1)->grant.grant, granted->grant.grant) << "no other turn meanwhile";
  EXPECT_NE(client(0).waiting_for.find("past nvshare"), std::string::npos);

  // An administrator's pause is another.
  protocol::admin::SetRequest change;
  change.tenant = "train";
  change.paused = true;
  ASSERT_TRUE(engine().set(change, ++now_));
  change.paused = false;
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_EQ(packets_.last<protocol::LockOk>(1)->grant.grant, granted->grant.grant);
  kill(bypassing, SIGKILL);
  waitpid(bypassing, nullptr, 0);
  look(false);
  EXPECT_GT(packets_.last<protocol::LockOk>(1)->grant.grant, granted->grant.grant) << "it goes on by itself";
}

// Its lines used up what all warnings together may have, so that nothing was said of others, nor of the scheduler itself.
TEST_F(EngineTest, ATenantThatIsRefusedAgainAndAgainKeepsNobodyElsesRefusalOutOfTheLog) {
  std::ostringstream log;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
  ConnectionId connection = 0;
  const auto is_refused = [&](const std::string& account, pid_t pid) {
    Peer peer;
    peer.pid = pid;
    peer.account = account;
    engine().connected(++connection, std::move(peer));
    send(connection, protocol::ReqLock{1});  // before it has registered
  };
  for (pid_t pid = 100'001; pid <= 100'300; ++pid) is_refused("user 1000", pid);
  is_refused("user 1001", 200'001);
  spdlog::set_default_logger(before);
  const std::string said = log.str();
  EXPECT_NE(said.find("refused pid 100001"), std::string::npos) << said;
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 40) << said;
  EXPECT_NE(said.find("refused pid 200001"), std::string::npos) << said;
}

// It would be in none of the groups that have limits: a process moves into a folder of its own that is too deep for the kernel to show.
TEST_F(EngineTest, WhoseCgroupsCannotBeReadIsRefused) {
  std::string cgroups = "0::/system.slice/train.service\n";
  look_at_cgroups_ = [&](pid_t) { return std::exchange(cgroups, std::string(kUnreadableCgroups)); };
  EXPECT_NE(come(1, getpid()).client_id, 0u);
  const auto& tenants = engine().parts().tenants.all();
  ASSERT_EQ(tenants.size(), 1u);
  EXPECT_EQ(tenants.begin()->second.kind, "unit") << "all that is asked of one that comes is from one look";
  EXPECT_EQ(come(2, getppid()).client_id, 0u);
  const auto refused = packets_.last<protocol::Refused>(2);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->barred, 1);
}

}  // namespace
}  // namespace nvshare::scheduler
