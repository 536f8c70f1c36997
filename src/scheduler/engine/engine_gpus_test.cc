// GPUs that clients name where NVML does not run: few for each account, and places of those that nobody uses are used again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/log.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

constexpr policy::Duration kOneSecond = 1'000'000'000;

class AnswersOnly : public Transport {
 public:
  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors) override {
    const auto type = *protocol::decode_type(packet.span());
    if (type == protocol::MessageType::kRegistered) registered.insert(connection);
    if (type == protocol::MessageType::kLockOk) got_lock.insert(connection);
  }
  void close(ConnectionId connection) override { registered.erase(connection); }

  std::set<ConnectionId> registered, got_lock;
};

class NamedGpus : public testing::Test {
 protected:
  NamedGpus() {
    set_log_level("error");
    settings_.lock_dir = folder_.path();
    settings_.runtime_dir = folder_.path();
  }

  Engine& engine() {
    if (!engine_) {
      Engine::Options options;
      options.settings = settings_;
      options.known_clients_file = folder_.path() + "/clients";
      options.gpus_most = gpus_most_;
      options.look_at_host = [] { return HostBudget::Machine{int64_t{64} << 30, std::nullopt}; };
      engine_.emplace(std::move(options), answers_, now_);
    }
    return *engine_;
  }

  // A client of that account names that GPU. False: it was refused.
  bool names(ConnectionId connection, const std::string& account, int gpu) {
    Peer peer;
    peer.account = account;
    peer.pid = getpid();
    engine().connected(connection, std::move(peer));
    auto message = test_registration(0, 1);
    message.gpu_uuid[0] = static_cast<uint8_t>(gpu >> 8);
    message.gpu_uuid[1] = static_cast<uint8_t>(gpu);
    engine().received(connection, protocol::encode(message).span(), ++now_);
    return answers_.registered.contains(connection);
  }

  void leaves(ConnectionId connection) { engine().disconnected(connection, "it left", ++now_); }

  // That time passes, with all that becomes due in it.
  void pass(policy::Duration duration) {
    const policy::Instant end = now_ + duration;
    for (auto due = engine().next_deadline(); due && *due < end; due = engine().next_deadline()) {
      now_ = std::max(now_ + 1, *due);
      engine().deadline_reached(now_);
    }
    now_ = end;
  }

  bool is_known(const std::string& start) {
    for (const auto& gpu : status_of(engine().parts(), now_).gpus) {
      if (gpu.uuid.starts_with(start)) return true;
    }
    return false;
  }

  size_t lock_files() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      count += entry.path().filename().string().starts_with("GPU-") ? 1 : 0;
    }
    return count;
  }

  TestFolder folder_;
  Settings settings_;
  int64_t gpus_most_ = bounds::kGpus;
  AnswersOnly answers_;
  policy::Instant now_ = kOneSecond;
  std::optional<Engine> engine_;
};

constexpr size_t kFilesOfALock = 2;  // the lock, and who has it

TEST_F(NamedGpus, ThoseThatNobodyUsesMakeRoomForOthers) {
  settings_.gpus_per_user = 3;
  for (int gpu = 1; gpu <= 3; ++gpu) EXPECT_TRUE(names(static_cast<ConnectionId>(gpu), "user 1000", gpu));
  EXPECT_FALSE(names(4, "user 1000", 4));
  EXPECT_TRUE(names(5, "user 1001", 5));
  leaves(1);
  EXPECT_FALSE(names(6, "user 1000", 4)) << "its process may come back, and have memory there";
  pass(120 * kOneSecond);
  EXPECT_TRUE(is_known("GPU-0001")) << "what is known of it stays until its place is needed";
  EXPECT_TRUE(names(7, "user 1000", 4));
  EXPECT_FALSE(is_known("GPU-0001"));
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.size(), 4u);
  EXPECT_EQ(lock_files(), 4 * kFilesOfALock) << "nor do files pile up";
  EXPECT_FALSE(names(8, "user 1000", 1)) << "the others are in use";
  EXPECT_TRUE(names(9, "user 1000", 2)) << "this one is known";
  leaves(5);
  pass(120 * kOneSecond);
  EXPECT_FALSE(names(10, "user 1000", 1)) << "another's place is not its own";
  EXPECT_FALSE(engine().parts().steps.violated_invariant());
}

// What a tenant with a limit owed there stood for ever where no other tenant with one came.
TEST_F(NamedGpus, ADebtThatWouldBePaidByNowHoldsNoPlace) {
  settings_.gpus_per_user = 1;
  protocol::admin::TenantRequest run{getpid(), "train", 0};
  run.gpu_core_limit = 1;
  ASSERT_TRUE(engine().orders().add_run(run));
  ASSERT_TRUE(names(1, "user 1000", 1));
  engine().received(1, protocol::encode(protocol::ReqLock{1}).span(), ++now_);
  ASSERT_TRUE(answers_.got_lock.contains(1));
  pass(5 * kOneSecond);  // it does not answer when it is to drop the lock
  leaves(1);
  EXPECT_FALSE(names(2, "user 1000", 2));
  pass(120 * kOneSecond);
  EXPECT_TRUE(names(3, "user 1000", 2));
}

TEST_F(NamedGpus, InAllTheyAreBoundedAndAccountsWithManyMakeRoomFirst) {
  gpus_most_ = 10;
  ASSERT_TRUE(names(1, "honest", 1));
  leaves(1);
  for (ConnectionId id = 2; id <= 10; ++id) {
    ASSERT_TRUE(names(id, id <= 6 ? "hostile" : "other", static_cast<int>(id)));
    leaves(id);
  }
  EXPECT_FALSE(names(50, "late", 50)) << "all of them may still matter";
  pass(120 * kOneSecond);
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(names(51 + static_cast<ConnectionId>(i), "late", 51 + i));
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.size(), 10u);
  EXPECT_TRUE(is_known("GPU-0001")) << "though it was named first";
  for (int i = 7; i < 10; ++i) EXPECT_TRUE(names(51 + static_cast<ConnectionId>(i), "late", 51 + i));
  EXPECT_FALSE(is_known("GPU-0001")) << "nobody uses it";
  EXPECT_FALSE(names(70, "late", 70)) << "all are in use";
}

}  // namespace
}  // namespace nvshare::scheduler
