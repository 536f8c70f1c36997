// With skip_unchanged: what did not change since it came in leaves the GPU without a copy, and every byte stays right.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

// Of two that hold 110 MiB each nearly all has to leave at each switch.
StageOptions small_gpu() {
  StageOptions options;
  options.gpu_memory_mb = 160;
  return options;
}

StageOptions with_skipping() {
  StageOptions options = small_gpu();
  options.scheduler["NVSHARE_SKIP_UNCHANGED"] = "on";
  return options;
}

struct Moved {
  uint64_t switches = 0;
  int64_t out = 0;
  int64_t unmoved = 0;
};

Moved moved_on(Stage& stage) {
  Moved moved;
  auto report = stage.status();
  if (!report || report->gpus.empty()) return moved;
  moved.switches = report->gpus[0].switches;
  moved.out = report->gpus[0].usage.swapped_out;
  moved.unmoved = report->gpus[0].usage.unmoved;
  return moved;
}

// What was moved from the one number of switches to the other.
Moved moved_between(Stage& stage, uint64_t first, uint64_t last) {
  Moved from, to;
  EXPECT_TRUE(stage.wait_until([&] {
    from = moved_on(stage);
    return from.switches >= first || stage.anybody_ended();
  }));
  EXPECT_TRUE(stage.wait_until([&] {
    to = moved_on(stage);
    return to.switches >= last || stage.anybody_ended();
  }));
  EXPECT_GE(to.switches, last) << "programs ended early";
  return {to.switches - from.switches, to.out - from.out, to.unmoved - from.unmoved};
}

// Two programs that have filled their memory: on a slow machine that takes several turns, in which all of it changes.
void serve(Stage& stage, const char* weights, const char* changes, const Environment& environment = {}) {
  std::vector<Child*> servers;
  for (const char* name : {"first", "second"}) {
    servers.push_back(&stage.start(name, {"serve", "--weights", weights, "--changes", changes}, environment));
  }
  EXPECT_TRUE(stage.wait_until([&] {
    return std::all_of(servers.begin(), servers.end(), [](Child* each) { return each->logged("serving"); }) || stage.anybody_ended();
  }));
}

// What is moved in so many switches, once what had to be copied for the first time is copied.
Moved moved_while_serving(Stage& stage, uint64_t switches) {
  const uint64_t settled = moved_on(stage).switches + 5;
  return moved_between(stage, settled, settled + switches);
}

void finish(Stage& stage) {
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// So that all of a program's memory changes in each of its turns. Where it does not, a comparison finds nothing wrong, and a hash that
// gives the same for everything loses bytes later.
constexpr const char* kChangesAll = kSanitized ? "3" : "0.5";
const auto kSwitches = static_cast<uint64_t>(scaled(25, 4));
const auto kFewSwitches = static_cast<uint64_t>(scaled(5, 2));

TEST(Unchanged, WeightsLeaveWithoutACopy) {
  Stage stage(with_skipping());
  stage.start_scheduler();
  serve(stage, "108M", "2M");
  const Moved moved = moved_while_serving(stage, kSwitches);
  EXPECT_GT(moved.unmoved, 0);
  EXPECT_GE(moved.unmoved, 9 * moved.out) << moved.out << " bytes were copied out";
  finish(stage);
}

TEST(Unchanged, WithoutTheSettingAllIsCopied) {
  Stage stage(small_gpu());
  stage.start_scheduler();
  serve(stage, "108M", "2M", {{"NVSHARE_SKIP_UNCHANGED", ""}});
  const Moved moved = moved_while_serving(stage, kFewSwitches);
  EXPECT_EQ(moved.unmoved, 0);
  EXPECT_GT(moved.out, 0);
  finish(stage);
}

// The program's own variable comes before the node's setting.
TEST(Unchanged, AProgramMayDoWithout) {
  Stage stage(with_skipping());
  stage.start_scheduler();
  serve(stage, "108M", "2M", {{"NVSHARE_SKIP_UNCHANGED", "off"}});
  const Moved moved = moved_while_serving(stage, kFewSwitches);
  EXPECT_EQ(moved.unmoved, 0);
  finish(stage);
}

TEST(Unchanged, WhatChangesIsCopiedAndRight) {
  StageOptions options = with_skipping();
  options.switch_time = kChangesAll;
  Stage stage(options);
  stage.start_scheduler();
  serve(stage, "0", "110M");
  const Moved moved = moved_while_serving(stage, kFewSwitches);
  EXPECT_GT(moved.out, 9 * moved.unmoved);
  finish(stage);
}

// A kernel that gives the same hash for everything: the comparison finds it out before anything is lost.
TEST(Unchanged, AHashThatIsWrongIsFoundOut) {
  StageOptions options = with_skipping();
  options.gpu["SIMGPU_FAULTS"] = "blind_hash";
  options.switch_time = kChangesAll;
  Stage stage(options);
  stage.start_scheduler();
  serve(stage, "0", "110M");
  const Moved moved = moved_while_serving(stage, kFewSwitches);
  EXPECT_EQ(moved.unmoved, 0);
  stage.tell_to_stop();
  stage.expect_success_of_all();
  EXPECT_TRUE(stage.scheduler().logged("memory that it took to be unchanged was not"));
  stage.expect_gpu_unharmed();
}

TEST(Unchanged, EightOfRandomSizes) {
  StageOptions options = with_skipping();
  options.gpu_memory_mb = 256;
  Stage stage(options);
  stage.start_scheduler();
  constexpr const char* kStreams[] = {"own", "legacy", "per-thread"};
  auto random = generator(1);
  for (int i = 0; i < 8; ++i) {
    stage.start("worker-" + std::to_string(i),
                {"mix", "--seed", std::to_string(random() % 1'000'000), "--largest", "102M", "--hold", i % 2 == 0 ? "110M" : "40M",
                 "--threads", i % 4 == 1 ? "3" : "1", "--streams", kStreams[i % 3]});
  }
  moved_between(stage, 0, static_cast<uint64_t>(scaled(150, 20)));
  finish(stage);
}

// The program's own handles are moved as wholes.
TEST(Unchanged, ExpandableSegments) {
  StageOptions options = with_skipping();
  options.gpu_memory_mb = 256;
  Stage stage(options);
  stage.start_scheduler();
  for (int i = 0; i < 2; ++i) {
    stage.start("segments-" + std::to_string(i), {"expandable", "--seed", std::to_string(i), "--hold", "110M"});
  }
  moved_between(stage, 0, 10);
  finish(stage);
}

}  // namespace
}  // namespace nvshare::e2e
