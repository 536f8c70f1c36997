// Drivers newer than nvshare's list of entry points, simulated by a stand-in that exports 40 functions which no list knows and some of what
// CUDA 13.1 and 13.2 added.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr int64_t kMiB = 1 << 20;

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class NewerDriver : public testing::Test {
 protected:
  void SetUp() override { stage_.start_scheduler(); }
  void TearDown() override {
    stage_.tell_to_stop();
    stage_.expect_success_of_all();
    stage_.expect_gpu_unharmed();
  }

  Child& start(const std::string& name, Arguments arguments) {
    return stage_.start(name, arguments, {{"LD_LIBRARY_PATH", std::string(kNewerStandInFolder) + ":" + kStandInFolder}});
  }

  // Memory that is all there from its beginning. 130M do not fit beside a program of 96 MiB.
  void start_neighbour(const std::string& memory = "130M") { start("neighbour", {"newer-driver", "--hold", memory, "--calls", "none"}); }

  bool moves_out(Child& child) {
    return stage_.wait_until([&] {
      auto client = stage_.client_of(child.pid());
      return (client && client->swapped >= 10 * kMiB) || !child.running();
    });
  }

  void expect_held_by(Child& child, const std::string& line, const std::string& name) {
    EXPECT_TRUE(stage_.wait_until([&] {
      auto client = stage_.client_of(child.pid());
      return (child.logged(line) && client && !client->keeps_memory.empty() && client->unswappable == client->resident &&
              client->swapped == 0 && client->resident >= 96 * kMiB) ||
             !child.running();
    })) << child.log();
    auto client = stage_.client_of(child.pid());
    ASSERT_TRUE(client) << child.log();
    EXPECT_NE(client->keeps_memory.find(name), std::string::npos) << client->keeps_memory;
    EXPECT_EQ(times(child.log(), "keeps all of its memory on the GPU"), 1u) << child.log();
  }

  Stage stage_;
};

// Runtimes look everything up: that alone changes nothing. The first call keeps the memory where it is, with one warning; the arguments
// arrive as they were given.
TEST_F(NewerDriver, UnknownCallsKeepTheMemoryWhereItIs) {
  Child& child = start("program", {"newer-driver", "--hold", "96M", "--go", stage_.go_file("program")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  start_neighbour();
  ASSERT_TRUE(moves_out(child)) << child.log();
  EXPECT_EQ(times(child.log(), "]: warning: "), 0u) << child.log();
  stage_.tell_to_go("program");
  expect_held_by(child, "called\n", "cuMemNew1");
  EXPECT_EQ(times(child.log(), "]: warning: "), 1u) << child.log();
}

TEST_F(NewerDriver, UnknownCallsByGetProcAddress) {
  Child& child = start("program", {"newer-driver", "--hold", "96M", "--reach", "proc", "--go", stage_.go_file("program")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  start_neighbour();
  ASSERT_TRUE(moves_out(child)) << child.log();
  stage_.tell_to_go("program");
  expect_held_by(child, "called\n", "cuMemNew1");
}

TEST_F(NewerDriver, QuestionsThatNobodyKnowsChangeNothing) {
  Child& child = start("program", {"newer-driver", "--hold", "96M", "--calls", "questions", "--go", stage_.go_file("program")});
  stage_.tell_to_go("program");
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("asked") || !child.running(); }));
  start_neighbour();
  EXPECT_TRUE(moves_out(child)) << child.log();
  auto client = stage_.client_of(child.pid());
  ASSERT_TRUE(client);
  EXPECT_EQ(client->keeps_memory, "");
  EXPECT_EQ(client->unswappable, 0);
}

// Having the library loaded is nothing; a session of it submits work at any time.
TEST_F(NewerDriver, ASessionOfTheVideoDecoderKeepsTheMemoryWhereItIs) {
  Child& child = start("program", {"session", "--hold", "96M", "--library", kFakeVideoPath, "--go", stage_.go_file("program")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
  start_neighbour();
  ASSERT_TRUE(moves_out(child)) << child.log();
  stage_.tell_to_go("program");
  expect_held_by(child, "opened", "cuvidCreateDecoder");
}

// Loaded before the driver is used, or after.
TEST_F(NewerDriver, SoDoesASessionOfALibraryThatIsLinkedWithTheDecoder) {
  for (const char* session : {"loaded", "later"}) {
    Child& child =
        start(session, {"session", "--session", session, "--hold", "96M", "--library", kLinkedVideoPath, "--go", stage_.go_file(session)});
    ASSERT_TRUE(stage_.wait_until([&] { return child.logged("standing still") || !child.running(); }));
    Child& neighbour = start(std::string("neighbour-") + session, {"newer-driver", "--hold", "130M", "--calls", "none"});
    ASSERT_TRUE(moves_out(child)) << child.log();
    stage_.tell_to_go(session);
    expect_held_by(child, "opened", "cuvidCreateDecoder");
    stage_.forget(child);
    stage_.forget(neighbour);
  }
}

TEST_F(NewerDriver, SoDoesASessionThatWasOpenedBeforeTheDriver) {
  stage_.tell_to_go("program");
  Child& child =
      start("program", {"session", "--session", "first", "--hold", "96M", "--library", kFakeVideoPath, "--go", stage_.go_file("program")});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("opened") || !child.running(); }));
  start_neighbour("64M");  // what never moves leaves no room for more
  expect_held_by(child, "opened", "cuvidCreateDecoder");
}

// The hook of an older version would take the arguments for others.
TEST_F(NewerDriver, NewVersionsOfKnownFunctionsAreReached) {
  Child& child = start("program", {"newer-versions"});
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("ready") || !child.running(); }));
  ASSERT_TRUE(child.running()) << child.log();
  start_neighbour();
  uint64_t turns = 0;
  EXPECT_TRUE(stage_.wait_until([&] {
    auto client = stage_.client_of(child.pid());
    turns = client ? client->turns : turns;
    return turns >= 4 || !child.running();
  })) << turns;
}

}  // namespace
}  // namespace nvshare::e2e
