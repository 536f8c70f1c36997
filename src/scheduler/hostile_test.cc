// A program of the machine that does not use the library but speaks its protocol, and lies; against nvshare-scheduler as it is installed.
// Each test is an attack that once succeeded. docs/security.md has them all.
#include <fcntl.h>

#include <algorithm>
#include <thread>

#include "protocol/admin.h"
#include "scheduler/test_program.h"

namespace nvshare::scheduler {
namespace {

using namespace std::chrono_literals;
using namespace protocol;

constexpr uint64_t kMiB = 1ULL << 20;
constexpr auto kSchedulersOwn = static_cast<uint8_t>(ArenaOwner::kScheduler);

class HostileTest : public ProgramTest {
 protected:
  ~HostileTest() override {
    if (scheduler_ <= 0) return;
    kill(scheduler_, SIGKILL);
    waitpid(scheduler_, nullptr, 0);
  }
  TestClient client() const { return TestClient(runtime_dir() + kClientSocket); }
  void run(const Variables& variables = {{"NVSHARE_LOG_LEVEL", "error"}}, int log_to = -1) { scheduler_ = start({}, variables, log_to); }

  // Ends the test where the scheduler has ended.
  bool serves() {
    if (waitpid(scheduler_, nullptr, WNOHANG) != 0) {
      scheduler_ = -1;
      return false;
    }
    return admin::decode_status(ask(R"({"request":"status"})")) ? true : false;
  }

  pid_t scheduler_ = -1;
};

TEST_F(HostileTest, NoOrderOfMessagesAboutHostMemoryEndsTheScheduler) {
  TestClient liar = client();
  run();
  auto registered = liar.join(test_registration(0));
  ASSERT_TRUE(registered);
  const uint64_t next = registered->epoch;  // what the ids began at, once
  liar.send(ArenaRequest{1, 64 * kMiB, kSchedulersOwn, 0, {}});
  for (uint64_t id = next; id < next + 4; ++id) {
    liar.send(ArenaHeld{id, 64 * kMiB, kSchedulersOwn, {}});
    liar.send(ArenaReturned{id});
  }
  auto lent = liar.expect<ArenaSegment>();
  EXPECT_TRUE(lent);
  ASSERT_TRUE(serves());
  EXPECT_TRUE(lent->segment < next || lent->segment > next + 1'000'000) << "an id that can be guessed";
}

// The scheduler stood in write(), and nobody was served any more.
TEST_F(HostileTest, ALogThatNobodyReadsHoldsUpNobody) {
  TestClient joiner = client();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  run({{"NVSHARE_LOG_LEVEL", "debug"}}, writer.get());
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(joiner.join(test_registration(0))) << i;  // each brings several lines about
  EXPECT_TRUE(serves());
  writer.reset();
  char part[65536];
  EXPECT_GT(read(reader.get(), part, sizeof part), 0);
  ASSERT_TRUE(joiner.join(test_registration(0)));
  EXPECT_NE(std::string(part, static_cast<size_t>(read(reader.get(), part, sizeof part))).find(" lines were dropped"), std::string::npos);
  reader.reset();  // and SIGPIPE ended it
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(joiner.join(test_registration(0))) << i;
  EXPECT_TRUE(serves());
}

TEST_F(HostileTest, ATenantThatJoinsAgainAndAgainDoesNotFillTheLog) {
  TestClient joiner = client();
  run({{"NVSHARE_LOG_LEVEL", "info"}});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(joiner.join(test_registration(0))) << i;
  EXPECT_TRUE(serves());
  const std::string log = said();
  EXPECT_NE(log.find(" joined: "), std::string::npos);
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 60) << "two for each join, once";
}

}  // namespace
}  // namespace nvshare::scheduler
