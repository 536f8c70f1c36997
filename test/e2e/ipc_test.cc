// Memory that one process hands to another, and that one GPU uses of another's.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

constexpr int64_t kMiB = 1 << 20;

class Ipc : public testing::Test {
 protected:
  std::string file() const { return stage_.directory() + "/handed"; }
  Child& exporter(const Arguments& more = {}) { return start("exporter", "ipc-export", more); }
  Child& importer(const Arguments& more = {}) { return start("importer", "ipc-import", more); }
  Child& start(const std::string& name, const std::string& mode, const Arguments& more) {
    Arguments arguments = {mode, "--file", file()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return stage_.start(name, arguments);
  }
  bool says(Child& child, const std::string& text) {
    return stage_.wait_until([&] { return child.logged(text) || !child.running(); }) && child.logged(text);
  }
  int64_t unswappable_of(const Child& child) {
    auto client = stage_.client_of(child.pid());
    return client ? client->unswappable : -1;
  }

  // Against the tenant's memory limit.
  int64_t charged_of(const Child& child) {
    auto client = stage_.client_of(child.pid());
    return client ? client->charged : -1;
  }

  Stage stage_;
};

TEST_F(Ipc, MemoryOfOneProcessIsUsedByAnotherOfItsTenantOverManyTurns) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  // Three that do not fit together: 64 + 50 + 100 MiB.
  stage_.start("neighbour", {"mix", "--hold", "100M", "--floor", "90M", "--largest", "60M"});
  Child& from = exporter({"--hand", "24M", "--hold", "40M"});
  Child& to = importer({"--hold", "50M", "--steps", std::to_string(scaled(120, 15))});
  ASSERT_TRUE(says(to, "opened"));
  EXPECT_GE(unswappable_of(from), 24 * kMiB);
  EXPECT_EQ(unswappable_of(to), 0) << "imported memory is its exporter's";
  EXPECT_GE(charged_of(from), 64 * kMiB);
  EXPECT_LT(charged_of(to), 51 * kMiB) << "counted twice";
  uint64_t turns = 0;
  EXPECT_TRUE(stage_.wait_until([&] {
    if (auto client = stage_.client_of(to.pid())) turns = client->turns;
    return !to.running();
  }));
  stage_.expect_success(to);
  stage_.expect_success(from);
  EXPECT_GE(turns, 2u);
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

// The pair fits together, but not beside the neighbour: each is switched in the middle of rounds that wait for the other's events.
TEST_F(Ipc, EventsOrderTheWorkOfTwoProcessesOverManyTurns) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  stage_.start("neighbour", {"mix", "--hold", "110M", "--floor", "100M", "--largest", "60M"});
  Child& leader = start("leader", "ipc-ordered", {"--leads", "1", "--hold", "45M"});
  Child& other = start("other", "ipc-ordered", {"--hold", "45M"});
  ASSERT_TRUE(says(leader, "ordered") && says(other, "ordered"));
  const auto wanted = static_cast<uint64_t>(scaled(8, 3));
  uint64_t turns[2] = {};
  EXPECT_TRUE(stage_.wait_until([&] {
    for (int i = 0; i < 2; ++i) {
      if (auto client = stage_.client_of((i == 0 ? leader : other).pid())) turns[i] = client->turns;
    }
    return (turns[0] >= wanted && turns[1] >= wanted) || stage_.anybody_ended();
  })) << turns[0]
      << " and " << turns[1] << " turns";
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

// The end of a capture waited for the GPU, if an import had been closed in it, and the GPU may wait for the capturing thread.
TEST_F(Ipc, TheEndOfACaptureDoesNotWaitForWhatWasClosedInIt) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  Child& from = exporter({"--hand", "24M", "--hold", "8M"});
  Child& to = start("importer", "ipc-close-while-the-gpu-waits", {});
  ASSERT_TRUE(says(to, "closed, and another opened"));
  // Its work on what it closed arrives, and then it has no more of it.
  ASSERT_TRUE(says(from, "looked at"));
  stage_.expect_success(from);
  EXPECT_TRUE(stage_.wait_until([&] { return unswappable_of(to) == 0 && charged_of(to) < 1 * kMiB; })) << charged_of(to);
  stage_.tell_to_stop();
  stage_.expect_success(to);
  stage_.expect_gpu_unharmed();
}

// Closing one import waited for the work of all contexts in which others had been closed beside a capture.
TEST_F(Ipc, AClosedImportDoesNotWaitForTheWorkOfOtherContexts) {
  stage_.start_scheduler();
  stage_.make_tenant("three", getpid());
  Child& from = exporter({"--hand", "3M", "--hold", "2M"});
  Child& second = stage_.start("second", {"ipc-export", "--file", file() + ".second", "--hand", "3M", "--hold", "2M"});
  Child& to = start("importer", "ipc-close-elsewhere", {"--other", file() + ".second"});
  stage_.expect_success(to);
  stage_.expect_success(from);
  stage_.expect_success(second);
  stage_.expect_gpu_unharmed();
}

// It waited for good for a context that it did not know, and the importer was charged for what its exporter had left.
TEST_F(Ipc, WhatWasClosedInAContextThatNoHookSawIsLetGo) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  Child& from = exporter({"--hand", "24M", "--hold", "8M"});
  Child& to = start("importer", "ipc-close-unseen", {});
  stage_.expect_success(from);
  EXPECT_TRUE(stage_.wait_until([&] { return unswappable_of(to) == 0 && charged_of(to) < 1 * kMiB; }, moments())) << charged_of(to);
  stage_.tell_to_stop();
  stage_.expect_success(to);
  stage_.expect_gpu_unharmed();
}

// The library still had the memory, as its free waited for the GPU.
TEST_F(Ipc, AHandleOfMemoryThatWasFreedIsRefused) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  Child& from = start("exporter", "ipc-export-freed", {});
  Child& to = start("importer", "ipc-import-freed", {});
  stage_.expect_success(to);
  stage_.expect_success(from);
  stage_.expect_gpu_unharmed();
}

TEST_F(Ipc, AStrangerIsRefused) {
  stage_.start_scheduler();
  Child& from = exporter();
  stage_.make_tenant("one", from.pid());
  ASSERT_TRUE(says(from, "handed over"));
  Child& stranger = start("stranger", "ipc-refused", {});
  stage_.expect_success(stranger);
  EXPECT_TRUE(stranger.logged("it belongs to another tenant"));
  EXPECT_TRUE(stage_.scheduler().logged("which is of another tenant: refused"));
  stage_.tell_to_stop();
  stage_.expect_success(from);
}

TEST_F(Ipc, TwoProgramsOfOneUserThatNobodyGroupedMayOpenEachOthersMemory) {
  stage_.start_scheduler();
  Child& from = exporter({"--hand", "24M"});
  Child& to = importer({"--steps", std::to_string(scaled(40, 8))});
  ASSERT_TRUE(says(to, "opened"));
  EXPECT_GE(unswappable_of(from), 24 * kMiB);
  EXPECT_EQ(unswappable_of(to), 0);
  ASSERT_TRUE(stage_.wait_until([&] { return !to.running(); }));
  stage_.expect_success(to);
  stage_.tell_to_stop();
  stage_.expect_success(from);
  EXPECT_FALSE(stage_.scheduler().logged("refused"));
}

TEST(IpcOnTwoGpus, TheImportersOtherGpuCopiesIt) {
  StageOptions options;
  options.gpu = {{"SIMGPU_COUNT", "2"}};
  Stage stage(options);
  stage.start_scheduler();
  const std::string file = stage.directory() + "/handed";
  Child& from = stage.start("exporter", {"ipc-export", "--file", file, "--hand", "8M", "--hold", "8M"});
  Child& to = stage.start("importer", {"ipc-import", "--file", file, "--gpus", "2", "--hold", "8M"});
  stage.expect_success(to);
  ASSERT_TRUE(to.logged("copied by another GPU"));
  stage.expect_success(from);
  stage.expect_gpu_unharmed();
}

// Without and with a capture under way when the importer closes: the program's own, so that nothing may wait for its end.
class IpcClosing : public Ipc, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(When, IpcClosing, testing::Bool(), [](const auto& chosen) { return chosen.param ? "InACapture" : "AtRest"; });

TEST_P(IpcClosing, AKilledExportersMemoryIsTheImportersUntilItCloses) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  stage_.start("neighbour", {"mix", "--hold", "100M", "--floor", "90M", "--largest", "60M"});
  Child& from = exporter({"--hand", "24M"});
  Child& to = importer({"--hold", "40M", "--steps", "20", "--go", stage_.go_file("close"), "--in-capture", GetParam() ? "1" : "0"});
  ASSERT_TRUE(says(to, "standing still"));
  from.signal(SIGKILL);
  from.wait(moments());
  EXPECT_TRUE(stage_.wait_until([&] { return unswappable_of(to) >= 24 * kMiB && charged_of(to) >= 64 * kMiB; })) << charged_of(to);
  stage_.tell_to_go("close");
  ASSERT_TRUE(says(to, "closed"));
  EXPECT_TRUE(stage_.wait_until([&] { return unswappable_of(to) == 0 && charged_of(to) < 41 * kMiB; })) << charged_of(to);
  stage_.forget(from);
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

TEST_F(Ipc, AnExporterThatFreesPassesTheMemoryOn) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  Child& from = exporter({"--hand", "24M", "--go", stage_.go_file("end")});
  Child& to = importer({"--hold", "40M", "--steps", "20", "--go", stage_.go_file("close")});
  ASSERT_TRUE(says(from, "standing still"));
  // All but the slab that the small block lies in.
  EXPECT_TRUE(stage_.wait_until([&] { return unswappable_of(to) >= 24 * kMiB && unswappable_of(from) <= 2 * kMiB; }))
      << unswappable_of(to) << " " << unswappable_of(from);
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

// The pool's memory is its exporter's, and stays on the GPU; the importer has nothing of it.
TEST_F(Ipc, AnImportedPoolsMemoryCountsAtItsExporter) {
  stage_.start_scheduler();
  stage_.make_tenant("pair", getpid());
  Child& neighbour = stage_.start("neighbour", {"mix", "--hold", "100M", "--floor", "90M", "--largest", "60M"});
  Child& from = stage_.start("exporter", {"pool-export", "--hand", "12M", "--hold", "60M", "--go", stage_.go_file("free")});
  ASSERT_TRUE(says(from, "imported") && says(from, "standing still")) << from.log();
  int64_t charged = -1;
  int64_t unswappable = -1;
  EXPECT_TRUE(stage_.wait_until([&] {
    auto report = stage_.status();
    if (!report) return false;
    for (const auto& client : report->clients) {
      if (client.pid == from.pid() || client.pid == neighbour.pid()) continue;
      charged = client.charged;
      unswappable = client.unswappable;
    }
    return charged >= 0;
  }));
  EXPECT_LT(charged, 2 * kMiB) << "counted twice";
  EXPECT_EQ(unswappable, 0);
  EXPECT_GE(charged_of(from), 72 * kMiB);
  EXPECT_GE(unswappable_of(from), 12 * kMiB);
  stage_.tell_to_go("free");
  stage_.expect_success(from);
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

TEST_F(Ipc, WithoutASchedulerTheDriversOwnDoes) {
  Child& from = exporter();
  Child& to = importer({"--steps", "20"});
  stage_.expect_success(to);
  stage_.expect_success(from);
  EXPECT_TRUE(from.logged("uses GPU 0 (GPU-"));
  stage_.expect_gpu_unharmed();
}

TEST(Peer, AnotherGpuKeepsItsAccessOverManyTurns) {
  StageOptions options;
  options.gpu = {{"SIMGPU_COUNT", "2"}};
  Stage stage(options);
  stage.start_scheduler();
  Child& peer = stage.start("peer", {"peer", "--hold", "100M"});
  ASSERT_TRUE(stage.wait_until([&] { return peer.logged("peers") || !peer.running(); }));
  Child& neighbour = stage.start("neighbour", {"mix", "--hold", "130M", "--floor", "115M", "--largest", "80M"});
  const auto wanted = static_cast<uint64_t>(scaled(10, 4));
  uint64_t turns = 0;
  EXPECT_TRUE(stage.wait_until([&] {
    if (auto client = stage.client_of(neighbour.pid())) turns = client->turns;
    return turns >= wanted || stage.anybody_ended();
  }));
  EXPECT_GE(turns, wanted);
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
