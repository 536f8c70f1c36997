// Questions that need the kubelet's list: one list for many, patience while a container is not listed yet, an end with no question
// forgotten.
#include "kubernetes/kubelet/allocation_worker.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

namespace nvshare::kubernetes {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;  // of the test; only a failing one waits so long

class AllocationWorkerTest : public testing::Test {
 protected:
  AllocationWorkerTest() {
    std::string name = (std::filesystem::temp_directory_path() / "nvshare-worker-XXXXXX").string();
    settings_.install_dir = mkdtemp(name.data());
    auto node = Node::open(settings_, {"/library", "/preload"}, {{"GPU-a", 10LL << 30, true}, {"GPU-b", 10LL << 30, true}});
    EXPECT_TRUE(node);
    node_ = std::move(*node);
    node_->update({});
  }
  ~AllocationWorkerTest() override { std::filesystem::remove_all(settings_.install_dir); }

  static HeldDevices pod(const std::string& name, const std::string& gpu, int first, int count) {
    HeldDevices held{"default", name, "main", {gpu}, {}, {}};
    for (int i = 0; i < count; ++i) held.memory.insert(unit_id(Resource::kMemory, first + i));
    return held;
  }
  static std::future<std::optional<std::string>> start(AllocationWorker& worker, Resource resource, std::vector<std::string> ids) {
    auto promise = std::make_shared<std::promise<std::optional<std::string>>>();
    worker.pre_start(resource, std::move(ids), [promise](std::optional<std::string> refusal) { promise->set_value(std::move(refusal)); });
    return promise->get_future();
  }
  template <typename T>
  static T get(std::future<T> future) {
    EXPECT_EQ(future.wait_for(kPatience), std::future_status::ready);
    return future.get();
  }

  Settings settings_;
  std::unique_ptr<Node> node_;
};

TEST_F(AllocationWorkerTest, WaitsUntilTheContainerIsListed) {
  std::atomic<int> lists{0};
  AllocationWorker worker(
      *node_,
      [&]() -> Result<std::vector<HeldDevices>> {
        int number = ++lists;
        if (number == 1) return error_format("not there yet");
        if (number == 2) return std::vector<HeldDevices>{};
        return std::vector<HeldDevices>{pod("p", "GPU-a::0", 0, 4)};
      },
      kPatience);
  EXPECT_EQ(get(start(worker, Resource::kMemory, {"memory-00000", "memory-00003"})), std::nullopt);
  EXPECT_GE(lists, 3);
  EXPECT_EQ(node_->loads()[0].bytes_granted, 4LL << 30);
}

// No kubelet asks so; the plugin ended when one did.
TEST_F(AllocationWorkerTest, AStartThatNamesNoDeviceIsRefused) {
  AllocationWorker worker(
      *node_, []() -> Result<std::vector<HeldDevices>> { return std::vector<HeldDevices>{}; }, 0ms);
  for (const Resource resource : {Resource::kGpu, Resource::kMemory}) {
    const auto refusal = get(start(worker, resource, {}));
    ASSERT_TRUE(refusal);
    EXPECT_NE(refusal->find("names no device"), std::string::npos) << *refusal;
  }
}

// Names of pods come with the list: without them it is not known what a pod's namespace may have.
TEST_F(AllocationWorkerTest, ListsUntilItSucceedsAndWhileSomebodyWaitsForMore) {
  std::atomic<int> lists{0};
  std::atomic<int> updates{0};
  std::atomic<bool> incomplete{true};
  node_->listen({[&](const std::vector<HeldDevices>&) { ++updates; }, [&] { return incomplete.load(); }});
  const auto comes = [](const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    return condition();
  };
  AllocationWorker worker(*node_, [&]() -> Result<std::vector<HeldDevices>> {
    if (++lists <= 2) return error_format("no kubelet yet");
    return std::vector<HeldDevices>{};
  });
  EXPECT_TRUE(comes([&] { return updates == 2; })) << "without a question, after two failures and one list that was not enough";
  EXPECT_GE(lists, 4);
  incomplete = false;
  const int before = updates;
  std::this_thread::sleep_for(1500ms);  // pauses would be of 200, 400 and 800 ms
  EXPECT_LE(updates, before + 1) << "nothing waits any more";
  incomplete = true;
  const int after = updates;
  EXPECT_TRUE(comes([&] { return updates > after; })) << "a pod that came meanwhile";
}

TEST_F(AllocationWorkerTest, RefusalsNameTheFreeMemoryAndLateOnesTheReason) {
  std::vector<HeldDevices> listed = {pod("p", "GPU-a::0", 0, 8), pod("q", "GPU-a::1", 8, 8)};
  {
    AllocationWorker worker(
        *node_, [&]() -> Result<std::vector<HeldDevices>> { return std::vector<HeldDevices>(listed); }, 50ms);
    EXPECT_EQ(get(start(worker, Resource::kGpu, {"GPU-a::0"})), std::nullopt);
    auto refusal = get(start(worker, Resource::kGpu, {"GPU-a::1"}));
    ASSERT_TRUE(refusal);
    EXPECT_NE(refusal->find("GPU-a 2 GiB of 10 GiB; GPU-b 10 GiB of 10 GiB;"), std::string::npos) << *refusal;
    EXPECT_EQ(get(start(worker, Resource::kGpu, {"GPU-b::9"})), std::nullopt) << "an init container's GPU";
    auto unlisted = get(start(worker, Resource::kMemory, {"memory-00019"}));
    ASSERT_TRUE(unlisted);
    EXPECT_NE(unlisted->find("init container"), std::string::npos) << *unlisted;
  }
  AllocationWorker deaf(
      *node_, []() -> Result<std::vector<HeldDevices>> { return error_format("no such socket"); }, 50ms);
  auto refusal = get(start(deaf, Resource::kGpu, {"GPU-a::0"}));
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->find("no such socket"), std::string::npos);
}

TEST_F(AllocationWorkerTest, PrefersByTheNewestListAndByAnOldOneWhereThereIsNone) {
  std::atomic<bool> deaf{false};
  AllocationWorker worker(*node_, [&]() -> Result<std::vector<HeldDevices>> {
    if (deaf) return error_format("deaf");
    return std::vector<HeldDevices>{pod("p", "GPU-a::0", 0, 8)};
  });
  for (int i = 0; i < 2; ++i) {
    auto chosen = std::make_shared<std::promise<std::vector<std::string>>>();
    worker.prefer(Resource::kGpu, {"GPU-a::1", "GPU-b::0"}, {}, 1,
                  [chosen](std::vector<std::string> ids) { chosen->set_value(std::move(ids)); });
    EXPECT_EQ(get(chosen->get_future()), std::vector<std::string>{"GPU-b::0"});
    deaf = true;
  }
}

TEST_F(AllocationWorkerTest, AnswersEverybodyBeforeItEnds) {
  std::vector<std::future<std::optional<std::string>>> waiting;
  {
    AllocationWorker worker(
        *node_, []() -> Result<std::vector<HeldDevices>> { return std::vector<HeldDevices>{}; }, kPatience);
    for (int i = 0; i < 20; ++i) waiting.push_back(start(worker, Resource::kGpu, {"GPU-a::0"}));
  }
  for (auto& one : waiting) EXPECT_TRUE(get(std::move(one)));
}

}  // namespace
}  // namespace nvshare::kubernetes
