// A program of the machine that does not use the library but speaks its protocol, and lies; against nvshare-scheduler as it is installed.
// Each test is an attack that once succeeded. docs/security.md has them all.
#include <fcntl.h>

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

}  // namespace
}  // namespace nvshare::scheduler
