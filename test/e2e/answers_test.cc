// The driver's answers: sequences of calls (test/gpu/answers) print the same lines under nvshare, in each of its states, as without it.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

std::string answers_in(const std::string& log) {
  std::string found;
  for (size_t at = 0; at < log.size();) {
    const size_t end = std::min(log.find('\n', at), log.size());
    if (log.compare(at, 2, "> ") == 0) found += log.substr(at + 2, end - at - 2) + "\n";
    at = end + 1;
  }
  return found;
}

// The stand-in's answers, with what was recorded in place of those of calls that it does not have (CUDA_ERROR_NOT_SUPPORTED).
std::string without_missing_calls(const std::string& answers, const std::string& recorded, int* missing) {
  std::istringstream ours(answers), theirs(recorded);
  std::string found, line, other;
  while (std::getline(ours, line)) {
    if (!std::getline(theirs, other)) other.clear();
    const bool is_missing = line.ends_with(": 801");
    *missing += is_missing && other != line;
    found += (is_missing ? other : line) + "\n";
  }
  return found;
}

StageOptions options_for(int gpus) {
  StageOptions options;
  options.gpu = {{"SIMGPU_COUNT", std::to_string(gpus)}};
  return options;
}

class Answers : public testing::Test {
 protected:
  // `more`: what the sequence is started with besides its name.
  static std::vector<std::string> command(const std::string& sequence, const Arguments& more) {
    std::vector<std::string> words = {E2E_ANSWERS, sequence};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // The same without nvshare.
  static std::string bare(Stage& stage, const std::string& sequence, const Arguments& more) {
    static int runs = 0;  // each has a log of its own
    Child& child = stage.start_command("bare-" + sequence + std::to_string(++runs), command(sequence, more), false);
    EXPECT_EQ(child.wait(moments()).value_or(-1), 0) << child.log();
    const std::string answers = answers_in(child.log());
    EXPECT_NE(answers.find("end of " + sequence), std::string::npos) << child.log();
    stage.forget(child);
    return answers;
  }

  void expect_same(Stage& stage, const std::string& state, const std::string& sequence, const Arguments& more) {
    const std::string expected = bare(stage, sequence, more);
    Child& child = stage.start_command(state + "-" + sequence, command(sequence, more), true);
    EXPECT_EQ(child.wait(moments()).value_or(-1), 0) << child.log();
    EXPECT_EQ(expected, answers_in(child.log())) << sequence << ", " << state << "\n" << child.log();
    stage.forget(child);
  }

  // Alone: before the first turn, after it, and in one that has just begun.
  void expect_same_alone(const std::vector<std::string>& sequences, int gpus = 1) {
    Stage stage(options_for(gpus));
    stage.start_scheduler();
    for (const std::string& sequence : sequences) {
      expect_same(stage, "cold", sequence, {"--cold", "--multicast"});
      expect_same(stage, "plain", sequence, {"--multicast"});
      expect_same(stage, "warm", sequence, {"--warm"});
    }
    stage.expect_gpu_unharmed();
  }

  // By another backend (NVSHARE_MEMORY_BACKEND).
  void expect_same_by(const std::string& backend, const std::vector<std::string>& sequences) {
    StageOptions options = options_for(1);
    options.gpu["NVSHARE_MEMORY_BACKEND"] = backend;
    Stage stage(options);
    stage.start_scheduler();
    for (const std::string& sequence : sequences) expect_same(stage, backend, sequence, {});
    stage.expect_gpu_unharmed();
  }

  void expect_same_unshared(const std::vector<std::string>& sequences, int gpus = 1) {
    Stage stage(options_for(gpus));
    for (const std::string& sequence : sequences) expect_same(stage, "unshared", sequence, {});
    stage.expect_gpu_unharmed();
  }

  // While another program has the GPU, and all memory of this one is on the host.
  void expect_same_swapped_out(const std::string& sequence, int gpus = 1) {
    Stage stage(options_for(gpus));
    stage.start_scheduler();
    const std::string go = stage.go_file(sequence);
    stage.tell_to_go(sequence);
    const std::string expected = bare(stage, sequence, {"--warm"});
    Child& child = stage.start_command(sequence, command(sequence, {"--warm", "--go", stage.go_file("later")}), true);
    ASSERT_TRUE(stage.wait_until([&] { return child.logged("standing still") || !child.running(); }));
    Child& large = stage.start("large", {"mix", "--seed", "98", "--floor", "190M", "--hold", "192M", "--largest", "60M"});
    EXPECT_TRUE(stage.wait_until([&] {
      auto client = stage.client_of(child.pid());
      return (client && client->swapped > 0 && client->resident == client->unswappable) || !child.running() || !large.running();
    })) << child.log();
    stage.tell_to_go("later");
    EXPECT_EQ(child.wait(patience()).value_or(-1), 0) << child.log();
    EXPECT_EQ(expected, answers_in(child.log())) << sequence << ", swapped out\n" << child.log();
    stage.forget(child);
    stage.tell_to_stop();
    stage.expect_success_of_all();
    stage.expect_gpu_unharmed();
  }
};

// The stand-in GPU's own answers are those of real ones.
TEST_F(Answers, OfTheStandInAreThoseRecorded) {
  std::ifstream file(E2E_RECORDED_ANSWERS);
  std::map<std::string, std::string> recorded;
  std::string line, name;
  while (std::getline(file, line)) {
    if (line.starts_with("[") && line.ends_with("]")) {
      name = line.substr(1, line.size() - 2);
    } else if (!name.empty()) {
      recorded[name] += line + "\n";
    }
  }
  ASSERT_GE(recorded.size(), 28u);
  Stage one(options_for(1)), two(options_for(2));
  int missing = 0;
  for (const auto& [sequence, answers] : recorded) {
    EXPECT_EQ(answers, without_missing_calls(bare(sequence.starts_with("two_") ? two : one, sequence, {}), answers, &missing)) << sequence;
  }
  EXPECT_LE(missing, 17) << "lines of calls that the stand-in does not have";
}

TEST_F(Answers, VirtualCallsOnPlainMemory) {
  expect_same_alone({"virtual_calls", "virtual_handles"});
  expect_same_unshared({"virtual_calls", "virtual_handles"});
}
TEST_F(Answers, VirtualCallsOnPlainMemoryThatIsSwappedOut) {
  expect_same_swapped_out("virtual_calls");
  expect_same_swapped_out("virtual_handles");
}

TEST_F(Answers, PointersAndStreamOrderedFrees) {
  expect_same_alone({"pointers", "stream_ordered"});
  expect_same_unshared({"pointers", "stream_ordered"});
}
TEST_F(Answers, PointersWhileSwappedOut) { expect_same_swapped_out("pointers"); }

TEST_F(Answers, WhatADriverRefuses) {
  expect_same_alone({"refusals", "array_copies", "pools", "captured_calls", "captured_elsewhere"});
  expect_same_unshared({"refusals", "array_copies", "pools", "captured_calls", "captured_elsewhere"});
}

// Its memory stays until the capture ends, and queries told of it.
TEST_F(Answers, MemoryThatIsFreedWhileAStreamCapturesIsGone) {
  expect_same_alone({"freed_in_captures"});
  expect_same_by("managed", {"freed_in_captures"});
  expect_same_by("none", {"freed_in_captures"});
  expect_same_unshared({"freed_in_captures"});
}

TEST_F(Answers, CopiesBesideCaptures) {
  expect_same_alone({"copies_beside_captures"});
  expect_same_by("managed", {"copies_beside_captures"});
  expect_same_by("none", {"copies_beside_captures"});
  expect_same_unshared({"copies_beside_captures"});
}

// Plain memory is managed memory with that backend, and was taken for it.
TEST_F(Answers, WhatIsForManagedMemoryOnly) {
  expect_same_alone({"for_managed_memory"});
  expect_same_by("managed", {"for_managed_memory"});
}
TEST_F(Answers, WhatADriverRefusesWhileSwappedOut) { expect_same_swapped_out("refusals"); }

// The driver itself crashes here.
TEST_F(Answers, MemoryThatIsFreedTwiceIsFreedOnce) {
  Stage stage(options_for(1));
  stage.start_scheduler();
  Child& child = stage.start_command("freed-twice", command("freed_twice", {}), true);
  EXPECT_EQ(child.wait(moments()).value_or(-1), 0) << child.log();
  const std::string once = "free in order: 0\nfree in order again: 1\nfree at once: 1\napart: 1\nbytes are there: 1 1\n";
  EXPECT_EQ(answers_in(child.log()), once + once + "end of freed_twice\n");
}

// With the backend `managed` the driver knows the memory that small allocations share, and would have freed it under them.
TEST_F(Answers, MemoryThatIsFreedAgainHarmsNoOther) {
  expect_same_alone({"freed_beside"});
  expect_same_by("managed", {"freed_beside", "pointers", "stream_ordered"});
  expect_same_by("none", {"freed_beside"});
  expect_same_unshared({"freed_beside"});
}

TEST_F(Answers, PlainMemoryIsNotAttachedToStreams) {
  expect_same_alone({"attached_to_streams"});
  expect_same_by("managed", {"attached_to_streams"});
}

TEST_F(Answers, MemoryThatIsMappedWithoutAccess) {
  expect_same_alone({"mapped_without_access"});
  expect_same_unshared({"mapped_without_access"});
}

TEST_F(Answers, MemoryThatWasFreedInStreamOrderIsNotThere) {
  expect_same_alone({"freed_in_order"});
  expect_same_by("managed", {"freed_in_order"});
  expect_same_by("none", {"freed_in_order"});
  expect_same_unshared({"freed_in_order"});
}

// Pools of these backends have their memory from the context, and what went with it was taken for theirs afterwards.
TEST_F(Answers, WhatLiesWhereMemoryOfAPoolWasIsPlain) {
  expect_same_by("managed", {"plain_after_pools"});
  expect_same_by("none", {"plain_after_pools"});
  expect_same_alone({"plain_after_pools"});
}

TEST_F(Answers, TexturesOfSmallAllocations) {
  expect_same_alone({"textures"});
  expect_same_unshared({"textures"});
}

// The graph of such a capture could be changed: the driver had not been asked about the free.
TEST_F(Answers, MemoryThatIsNotFreedInACapture) {
  expect_same_alone({"refused_frees_in_captures"});
  expect_same_unshared({"refused_frees_in_captures"});
}

TEST_F(Answers, ContextsThatAreAttachedTo) {
  expect_same_alone({"attached_contexts", "attached_primary", "detached_primary"});
  expect_same_unshared({"attached_contexts", "attached_primary", "detached_primary"});
}

// Without a context there was no turn to wait for: arrays hung, and memory was made that natively is refused.
TEST_F(Answers, ContextsThatAreGone) {
  expect_same_alone({"gone_contexts"});
  expect_same_unshared({"gone_contexts"});
}

// It went with the context, and a copy of it took its address for one of the host.
TEST_F(Answers, PoolsOutliveContexts) {
  expect_same_alone({"pools_outlive_resets", "pools_outlive_contexts"});
  expect_same_unshared({"pools_outlive_resets", "pools_outlive_contexts"});
}
TEST_F(Answers, PoolsOutliveContextsWhileSwappedOut) {
  expect_same_swapped_out("pools_outlive_resets");
  expect_same_swapped_out("pools_outlive_contexts");
}

// A pool's memory had an address for kernels, and a handle opened without flags was refused for want of a context.
TEST_F(Answers, WhatIsAskedOfAContextThatIsGone) {
  expect_same_alone({"asked_of_gone_contexts"});
  expect_same_unshared({"asked_of_gone_contexts"});
}

// Slots of a large slab crossed its pieces.
TEST_F(Answers, SmallAllocationsLieInOnePiece) {
  expect_same_alone({"small_mappings"});
  expect_same_unshared({"small_mappings"});
  expect_same_alone({"pool_mappings"});
  expect_same_unshared({"pool_mappings"});
}

// The legacy stream waits for what captures: memory in its order was made all the same.
TEST_F(Answers, MemoryInOrderBesideCaptures) {
  expect_same_alone({"beside_captures"});
  expect_same_unshared({"beside_captures"});
  expect_same_by("none", {"beside_captures"});
  expect_same_by("managed", {"beside_captures"});
}

// A graph with a memory operation on a pool's memory was launched, where a driver refuses.
TEST_F(Answers, MemoryOperationsOfGraphs) {
  expect_same_alone({"memop_graphs"});
  expect_same_unshared({"memop_graphs"});
}
TEST_F(Answers, MemoryOperationsOfGraphsWhileSwappedOut) { expect_same_swapped_out("memop_graphs"); }

TEST_F(Answers, GreenContexts) {
  expect_same_alone({"green_contexts", "green_contexts_gone"});
  expect_same_unshared({"green_contexts"});
}
// Both are swapped out by a thread of ours, to which no green context is ever current: the stand-in would count that as a fault.
TEST_F(Answers, StreamsOfGreenContexts) {
  expect_same_alone({"green_streams", "green_batches", "green_batches_alone"});
  expect_same_unshared({"green_streams", "green_batches", "green_batches_alone"});
}
TEST_F(Answers, HostPointers) {
  expect_same_alone({"host_pointers"});
  expect_same_swapped_out("host_pointers");
}
TEST_F(Answers, CopiesOfExecutableGraphsStayWithTheirKindOfMemory) {
  expect_same_alone({"changed_copies", "copies_changed_later"});
  expect_same_unshared({"changed_copies", "copies_changed_later"});
  expect_same_alone({"two_gpus_changed_copies"}, 2);
}
TEST_F(Answers, MemoryFreedBeforeItsContextEndedIsNotFreedAgain) {
  Stage stage(options_for(1));
  stage.start_scheduler();
  for (const char* backend : {"vmm", "managed", "none"}) {
    Child& child = stage.start_command(backend, command("freed_in_gone_contexts", {}), true,
                                       {{"NVSHARE_MEMORY_BACKEND", backend}, {"NVSHARE_LOG_LEVEL", "debug"}});
    EXPECT_EQ(child.wait(moments()).value_or(-1), 0) << child.log();
    EXPECT_NE(child.log().find("> written: 1"), std::string::npos) << child.log();
    EXPECT_EQ(child.log().find("giving back an address range failed"), std::string::npos) << backend << "\n" << child.log();
    stage.forget(child);
  }
  stage.expect_gpu_unharmed();
}
TEST_F(Answers, GreenContextsWhileSwappedOut) {
  expect_same_swapped_out("green_contexts");
  expect_same_swapped_out("green_contexts_gone");
}

TEST_F(Answers, HandlesOfAProcessWithoutAContext) {
  expect_same_alone({"handles_without_context"});
  expect_same_unshared({"handles_without_context"});
}

TEST_F(Answers, GraphsBuiltByHand) {
  expect_same_alone({"hand_graphs", "hand_graphs_updated", "hand_graphs_elsewhere"});
  expect_same_unshared({"hand_graphs", "hand_graphs_elsewhere"});
}
TEST_F(Answers, GraphsBuiltByHandWhileSwappedOut) {
  expect_same_swapped_out("hand_graphs");
  expect_same_swapped_out("hand_graphs_updated");
  expect_same_swapped_out("hand_graphs_elsewhere");
}

TEST_F(Answers, CopiesBetweenTwoGpus) {
  expect_same_alone({"two_gpus", "two_gpus_graphs", "two_gpus_apart"}, 2);
  expect_same_unshared({"two_gpus", "two_gpus_graphs"}, 2);
}

TEST_F(Answers, CopiesBetweenTwoGpusThatCannotUseEachOthersMemory) {
  StageOptions options = options_for(2);
  options.gpu["SIMGPU_NO_PEERS"] = "1";
  Stage stage(options);
  expect_same(stage, "unshared", "two_gpus_apart", {});
  stage.start_scheduler();
  expect_same(stage, "cold", "two_gpus_apart", {"--cold"});
  expect_same(stage, "plain", "two_gpus_apart", {});
  expect_same(stage, "warm", "two_gpus_apart", {"--warm"});
  stage.expect_gpu_unharmed();
}

// What another GPU's context may do to memory, and what it is told of it.
TEST_F(Answers, MemoryOfAnotherGpu) {
  expect_same_alone({"two_gpus_elsewhere", "two_gpus_fills"}, 2);
  expect_same_unshared({"two_gpus_elsewhere", "two_gpus_fills"}, 2);
}
TEST_F(Answers, MemoryOfAnotherGpuWhileSwappedOut) { expect_same_swapped_out("two_gpus_elsewhere", 2); }

// Memory that a pool gave out before it was opened to the other GPU.
TEST_F(Answers, PoolsThatAreOpenedToAnotherGpu) {
  expect_same_alone({"two_gpus_pools_opened"}, 2);
  expect_same_unshared({"two_gpus_pools_opened"}, 2);
}
TEST_F(Answers, PoolsThatAreOpenedWhileSwappedOut) { expect_same_swapped_out("two_gpus_pools_opened", 2); }

TEST_F(Answers, PeerAccessIsTheContextsThatAskedForIt) {
  expect_same_alone({"two_gpus_peers_of_contexts"}, 2);
  expect_same_unshared({"two_gpus_peers_of_contexts"}, 2);
}
TEST_F(Answers, PoolsAreNotOpenedByCopiesBetweenTwoGpus) {
  expect_same_alone({"two_gpus_pools", "two_gpus_pools_in_rows"}, 2);
  expect_same_unshared({"two_gpus_pools_in_rows"}, 2);
}

}  // namespace
}  // namespace nvshare::e2e
