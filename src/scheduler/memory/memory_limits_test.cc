// What clients hear of their tenant's memory limit, and what a successor may know of it, without an engine.
#include "scheduler/memory/memory_limits.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

class MemoryLimitsTest : public testing::Test {
 protected:
  // Its process number and connection are as its id.
  const RegisteredClient& join(policy::ClientId id, int64_t limit) {
    RegisteredClient client;
    client.id = client.connection = id;
    client.pid = static_cast<pid_t>(id);
    client.tenant = 1;
    client.version = protocol::version_spoken();
    client.program = "train";
    const RegisteredClient& joined = clients_.add(std::move(client));
    known_.join(0, {static_cast<pid_t>(id), 1, 1, "GPU-1", 0, 0, 0});
    limits_.perform(limits_.join({id, 1, 0, 0, limit, 0, 0, false, 0}, now_), now_);
    return joined;
  }
  int64_t lease_in_file(policy::ClientId id) const {
    const KnownClients next(folder_.path() + "/clients", [](pid_t) { return uint64_t{1}; });
    return next.missing().at(id).lease;
  }

  TestFolder folder_;
  policy::Instant now_ = 1'000'000'000;
  SentPackets packets_;
  Clients clients_;
  Gpus gpus_{{{GpuUuid{}, "card", 16 * kGiB}}, 1};
  Tenants tenants_;
  KnownClients known_{folder_.path() + "/clients"};
  PodNotices notices_;
  const ClientMessenger messenger_{clients_, packets_};
  MemoryLimits limits_{{clients_, gpus_, tenants_, messenger_, known_, notices_}};
};

TEST_F(MemoryLimitsTest, ALeaseIsPersistedBeforeTheClientHearsOfIt) {
  const RegisteredClient& client = join(1, 4 * kGiB);
  EXPECT_EQ(lease_in_file(1), 4 * kGiB);
  join(2, 4 * kGiB);
  limits_.ask(clients_.at(2), {1, kGiB, 0}, now_);
  const auto recall = packets_.last<protocol::RecallHeadroom>(1);
  ASSERT_TRUE(recall) << "all of it is the first one's";
  limits_.returned(client, {recall->recall, 2 * kGiB, kGiB}, now_);
  const auto answer = packets_.last<protocol::Headroom>(2);
  ASSERT_TRUE(answer && answer->granted);
  EXPECT_EQ(lease_in_file(2), limits_.ledger().lease_of(2));
  EXPECT_GE(lease_in_file(2), kGiB);
}

TEST_F(MemoryLimitsTest, ALimitThatChangesIsTold) {
  join(1, 4 * kGiB);
  limits_.set_limit(1, 0, 2 * kGiB, now_);
  const auto told = packets_.last<protocol::UpdateLimit>(1);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->memory_limit, static_cast<uint64_t>(2 * kGiB));
}

TEST_F(MemoryLimitsTest, ReservationsOfOneGpuAreBoundedTogether) {
  const auto run = tenants_.add_run(getpid(), "run", 0, true, 100, 0, 10 * kGiB);
  ASSERT_TRUE(run);
  gpus_[0].total = 16 * kGiB;
  Tenant second;
  second.id = *run + 1;
  second.gpu_memory_reserved = 10 * kGiB;
  Settings settings;
  EXPECT_TRUE(limits_.admit_reservation(0, second, settings)) << "the run has no program there";
  limits_.perform(limits_.join({1, *run, 0, 0, 0, 0, 0, false, 0}, now_), now_);
  EXPECT_FALSE(limits_.admit_reservation(0, second, settings));
  settings.gpu_memory_oversub_ratio = 2.0;
  EXPECT_TRUE(limits_.admit_reservation(0, second, settings)) << "the node reserves it twice";
}

// Before, of two that began at the same moment one was refused at its first CUDA call, perhaps long after its start.
TEST_F(MemoryLimitsTest, ARunOfASingleGpuHasItsReservationFromItsStartToItsEnd) {
  const std::string uuid = gpus_[0].uuid_text;
  const pid_t other = fork();
  if (other == 0) {
    for (;;) pause();
  }
  ASSERT_TRUE(tenants_.add_run(other, "first", 0, true, 100, 0, 10 * kGiB, 100, {uuid}));
  ASSERT_EQ(gpus_[0].total, 0) << "no program has used it";
  Tenant second;
  second.gpu_memory_reserved = 6 * kGiB;
  EXPECT_TRUE(limits_.admit_reservation(0, second, {}));
  second.gpu_memory_reserved = 7 * kGiB;
  EXPECT_FALSE(limits_.admit_reservation(0, second, {}));
  second.gpus = {uuid};
  EXPECT_TRUE(limits_.admit_reservation(0, second, {})) << "it was admitted at its own start";
  second.gpus = {uuid, "GPU-2"};
  EXPECT_FALSE(limits_.admit_reservation(0, second, {})) << "on several it has it where its programs are";
  Settings small;
  small.gpu_physical_memory = 14 * kGiB;
  second.gpu_memory_reserved = 5 * kGiB;
  EXPECT_TRUE(limits_.admit_reservation(0, second, {}));
  EXPECT_FALSE(limits_.admit_reservation(0, second, small)) << "as configured";
  second.gpu_memory_reserved = 7 * kGiB;
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  EXPECT_TRUE(limits_.admit_reservation(0, second, {})) << "the run has ended";
}

}  // namespace
}  // namespace nvshare::scheduler
