// Limits by annotation against a stand-in API server with TLS, over real sockets: whatever breaks, the last word of each pod is heard.
#include "kubernetes/pods/pod_limit_controller.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "kubernetes/files.h"
#include "kubernetes/pods/limit_publisher.h"
#include "kubernetes/pods/test_api_server.h"
#include "kubernetes/pods/test_checkpoint.h"
#include "kubernetes/pods/test_listening_scheduler.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Json = nlohmann::json;
using Fault = TestApiServer::Fault;

constexpr int64_t kGib = 1LL << 30;

class PodLimitControllerTest : public testing::Test {
 protected:
  PodLimitControllerTest() {
    signal(SIGPIPE, SIG_IGN);  // as the plugin does: TLS writes with write()
    std::string name = (fs::temp_directory_path() / "nvs-api-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    spdlog::set_level(std::getenv("NVSHARE_TEST_DEBUG") != nullptr ? spdlog::level::info : spdlog::level::off);
    server_ = std::make_unique<TestApiServer>(folder_);
  }
  ~PodLimitControllerTest() override {
    controller_.reset();
    scheduler_.reset();
    server_.reset();
    fs::remove_all(folder_);
  }
  void start() { start(server_->address()); }
  void start(const ApiServerAddress& api_server) {
    controller_.reset();
    PodLimitController::Options options;
    options.api_server = api_server;
    options.node = "node-1";
    options.runtime_dir = folder_ + "/run";
    options.resources = {"nvshare.com/gpu", "nvshare.com/gpu-memory", "nvshare.com/gpu-core", {.memory_unit = memory_unit_}};
    options.pace = {5ms, 50ms, 500ms, 300s};
    options.event_pace = {1ms, 4ms, 60s};
    options.kubelet_dir = folder_;
    options.not_shared_hint = "; a hint";
    options.record_dir = folder_;
    options.namespace_maxima = maxima_;
    controller_ = std::make_unique<PodLimitController>(options);
  }
  void start_scheduler() { scheduler_ = std::make_unique<ListeningScheduler>(folder_ + "/run"); }
  static bool wait(const std::function<bool()>& condition) {
    for (auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
      if (condition()) return true;
    }
    return false;
  }
  bool comes(const std::string& uid, const std::string& limits) {
    return wait([&] { return scheduler_->limits_of(uid) == limits; });
  }
  std::string event(size_t index) {
    if (!wait([&] { return server_->events().size() > index; })) return "no event";
    const Json json = Json::parse(server_->events()[index]);
    return json["reason"].get<std::string>() + " " + json["involvedObject"]["uid"].get<std::string>() + " " +
           json["message"].get<std::string>();
  }

  std::string folder_;
  NamespaceMaxima maxima_;
  int64_t memory_unit_ = kGib;
  std::unique_ptr<TestApiServer> server_;
  std::unique_ptr<ListeningScheduler> scheduler_;
  std::unique_ptr<PodLimitController> controller_;
};

// Without the right to write events, or with a server that is busy, an event was lost.
TEST_F(PodLimitControllerTest, AnEventThatWasRefusedIsToldAgain) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  start_scheduler();
  start();
  EXPECT_TRUE(comes(train, "4096/100"));
  server_->refuse_events({403, 429, 500, 503, 403});
  server_->annotate("train", kMemoryAnnotation, "lots");
  EXPECT_NE(event(0).find("BadLimit " + train), std::string::npos) << event(0);
  EXPECT_EQ(server_->refused_events(), 5);
  // What is wrong with an event itself is not tried again, and holds up no other.
  server_->refuse_events({422});
  server_->annotate("train", kMemoryAnnotation, "more");
  EXPECT_TRUE(wait([&] { return server_->refused_events() == 6; }));
  server_->annotate("train", kCoreAnnotation, "much");
  EXPECT_NE(event(1).find(kCoreAnnotation), std::string::npos) << event(1);
  EXPECT_EQ(server_->events().size(), 2u);
}

TEST_F(PodLimitControllerTest, WhatTheSchedulerSaysOfAPodIsItsEvent) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  start_scheduler();
  start();
  EXPECT_TRUE(comes(train, "4096/100"));
  controller_->noticed({{1, "77aa-none", "NotShared", "a pod that nobody knows"}, {2, train, "GpuOutOfMemory", "train asked for 5 GiB"}});
  EXPECT_EQ(event(0), "GpuOutOfMemory " + train + " train asked for 5 GiB");
  controller_->noticed({{3, train, "NotShared", "process 7 uses a GPU"}});
  EXPECT_EQ(event(1), "NotShared " + train + " process 7 uses a GPU; a hint");
}

TEST_F(PodLimitControllerTest, ReachTheSchedulerAndPodsEventsTellWhatIsWrong) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  server_->add_pod("web", {{"cpu", 1}});
  start_scheduler();
  start();
  EXPECT_TRUE(comes(train, "4096/100")) << "what it was granted";
  server_->annotate("train", kCoreAnnotation, "40");
  EXPECT_TRUE(comes(train, "4096/40"));
  server_->annotate("train", kMemoryAnnotation, "1536Mi");
  EXPECT_TRUE(comes(train, "1536/40"));
  server_->annotate("train", kMemoryAnnotation, "lots");
  EXPECT_NE(event(0).find("BadLimit " + train + " nvshare.com/gpu-memory-limit: 'lots'"), std::string::npos) << event(0);
  server_->annotate("train", kMemoryAnnotation, "9Gi");
  EXPECT_TRUE(comes(train, "4096/40"));
  EXPECT_NE(event(1).find("LimitClamped"), std::string::npos) << event(1);
  server_->annotate("train", kPriorityAnnotation, "7");
  EXPECT_NE(event(2).find("PriorityClamped"), std::string::npos) << event(2);
  server_->annotate("train", kPriorityAnnotation, "-7");
  EXPECT_TRUE(comes(train, "4096/40 priority -7"));
  server_->annotate("train", kPriorityAnnotation, "");
  EXPECT_TRUE(comes(train, "4096/40"));
  server_->annotate("train", kMemoryAnnotation, "3Gi");
  EXPECT_TRUE(comes(train, "3072/40"));
  server_->annotate("train", kCoreAnnotation, "");
  EXPECT_TRUE(comes(train, "3072/100")) << "removed: the default";
  const std::string late = server_->add_pod("late", {{"nvshare.com/gpu", 1}});
  EXPECT_TRUE(comes(late, "0/100"));
  server_->begin_deletion("train");
  EXPECT_TRUE(comes(train, "3072/100 ends"));
  server_->delete_pod("train");
  EXPECT_TRUE(comes(train, ""));
}

TEST_F(PodLimitControllerTest, ASchedulerThatComesLateOrAnewIsToldEverything) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}});
  server_->annotate("train", kCoreAnnotation, "40");
  start();
  ASSERT_TRUE(wait([&] { return server_->watches() > 0; }));
  start_scheduler();
  EXPECT_TRUE(comes(train, "0/40"));
  scheduler_.reset();
  server_->annotate("train", kCoreAnnotation, "50");
  start_scheduler();
  EXPECT_TRUE(comes(train, "0/50"));
  scheduler_.reset();
  start_scheduler();
  EXPECT_TRUE(comes(train, "0/50")) << "without any change of the pod";
}

// ---- what the kubelet granted ----

const char* const kStatic = "5d9f0c7c3b1a4e0a8f6d2b7e9c1a3f55";  // a static pod's UID is the kubelet's own

std::vector<CheckpointEntry> held(const std::string& uid, const std::set<std::string>& gpus, int units, int cores) {
  std::vector<CheckpointEntry> entries = {{uid, "main", "nvshare.com/gpu", gpus}};
  if (units > 0) entries.push_back({uid, "main", "nvshare.com/gpu-memory", {}});
  for (int i = 0; i < units; ++i) entries.back().ids.insert(unit_id(Resource::kMemory, i));
  if (cores > 0) entries.push_back({uid, "main", "nvshare.com/gpu-core", {}});
  for (int i = 0; i < cores; ++i) entries.back().ids.insert(unit_id(Resource::kCore, i));
  return entries;
}

TEST_F(PodLimitControllerTest, WithoutAnApiServerPodsHaveWhatTheKubeletGranted) {
  start_scheduler();
  write_checkpoint(folder_, checkpoint_text(held("aa-1", {"GPU-a::0"}, 4, 30)));
  start({});
  EXPECT_TRUE(comes("aa-1", "4096/30"));
  EXPECT_TRUE(wait([&] { return scheduler_->has_complete_list(); })) << "what an earlier plugin published of others is over";
  auto entries = held("aa-1", {"GPU-a::0"}, 4, 30);
  for (auto& entry : held("bb-2", {"GPU-a::1", "GPU-b::0"}, 8, 100)) entries.push_back(entry);
  write_checkpoint(folder_, checkpoint_text(entries));
  EXPECT_TRUE(comes("bb-2", "8192/50 GPU-a 4096 GPU-b 4096")) << scheduler_->limits_of("bb-2");
  controller_->held({{"team", "serve", "main", {"GPU-b::0"}, {}, {}}});
  EXPECT_TRUE(wait([&] { return scheduler_->name_of("bb-2") == "team/serve"; }));
  write_checkpoint(folder_, "{");
  write_checkpoint(folder_, checkpoint_text(held("bb-2", {"GPU-b::0"}, 2, 0)));
  EXPECT_TRUE(comes("aa-1", ""));
  EXPECT_TRUE(comes("bb-2", "2048/100"));
  start({});
  EXPECT_TRUE(comes("bb-2", "2048/100"));
}

TEST_F(PodLimitControllerTest, WithoutAnApiServerANamespacesMaximumHoldsOnceTheKubeletNamesThePod) {
  maxima_ = {{"team", {2 * kGib, 40}}};
  start_scheduler();
  write_checkpoint(folder_, checkpoint_text(held("bb-2", {"GPU-a::1", "GPU-b::0"}, 8, 100)));
  start({});
  EXPECT_TRUE(comes("bb-2", "8192/50 GPU-a 4096 GPU-b 4096")) << scheduler_->limits_of("bb-2");
  controller_->held({{"team", "serve", "main", {"GPU-b::0"}, {}, {}}});
  EXPECT_TRUE(comes("bb-2", "2048/40")) << scheduler_->limits_of("bb-2");
  controller_->held({{"others", "serve", "main", {"GPU-b::0"}, {}, {}}});
  EXPECT_TRUE(comes("bb-2", "8192/50 GPU-a 4096 GPU-b 4096")) << scheduler_->limits_of("bb-2");
}

// A restart of the plugin: the kubelet has not listed its pods yet, or cannot.
TEST_F(PodLimitControllerTest, WithoutAnApiServerARestartLiftsNoMaximumOfANamespace) {
  maxima_ = {{"team", {2 * kGib, 40}}};
  start_scheduler();
  write_checkpoint(folder_, checkpoint_text(held("bb-2", {"GPU-a::1"}, 8, 100)));
  start({});
  EXPECT_TRUE(comes("bb-2", "8192/100")) << "of which nothing was known";
  EXPECT_FALSE(controller_->all_named());
  controller_->held({{"team", "serve", "main", {"GPU-a::1"}, {}, {}}});
  EXPECT_TRUE(controller_->all_named());
  EXPECT_TRUE(comes("bb-2", "2048/40"));
  for (const bool with_record : {true, false}) {
    controller_.reset();
    if (!with_record) fs::remove(folder_ + "/pod-grants.json");
    scheduler_->forget_requests();
    start({});
    EXPECT_TRUE(wait([&] { return scheduler_->has_complete_list(); }));
    EXPECT_EQ(scheduler_->limits_of("bb-2"), "2048/40");
    EXPECT_EQ(controller_->all_named(), with_record);
    controller_->held({});
    auto entries = held("bb-2", {"GPU-a::1"}, 8, 100);
    for (auto& entry : held("cc-3", {"GPU-a::2"}, 1, 100)) entries.push_back(entry);
    write_checkpoint(folder_, checkpoint_text(entries));
    EXPECT_TRUE(comes("cc-3", "1024/100"));
    EXPECT_EQ(scheduler_->limits_of("bb-2"), "2048/40") << "a kubelet that has just started lists none";
    write_checkpoint(folder_, checkpoint_text(held("bb-2", {"GPU-a::1"}, 8, 100)));
    EXPECT_TRUE(comes("cc-3", ""));
  }
  controller_->held({{"others", "serve", "main", {"GPU-a::1"}, {}, {}}});
  EXPECT_TRUE(comes("bb-2", "8192/100")) << "once its name is known";
}

// "Not known" is not "no pod": what the scheduler has stays.
TEST_F(PodLimitControllerTest, ACheckpointThatIsNotThereOrCannotBeReadLiftsNothing) {
  const std::string checkpoint = folder_ + "/" + kCheckpointName;
  auto two = held("aa-1", {"GPU-a::0"}, 4, 30);
  for (auto& entry : held("bb-2", {"GPU-a::1"}, 2, 100)) two.push_back(entry);
  start_scheduler();
  write_checkpoint(folder_, checkpoint_text(two));
  start({});
  ASSERT_TRUE(comes("aa-1", "4096/30"));
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    const bool watches = round / 4 == 1;
    controller_.reset();
    fs::remove(checkpoint);
    if (round % 4 == 1) write_checkpoint(folder_, "{");
    if (round % 4 == 2) fs::create_directories(checkpoint);
    if (round % 2 == 1) fs::remove(folder_ + "/pod-grants.json");
    scheduler_->forget_requests();
    const int lists = server_->lists();
    if (watches) {
      start();
      ASSERT_TRUE(wait([&] { return server_->lists() > lists; }));
      const std::string uid = server_->add_pod("train-" + std::to_string(round), {{"nvshare.com/gpu", 1}});
      EXPECT_TRUE(comes(uid, "0/100")) << "a pod that the API server names has what it says, all the same";
    } else {
      start({});
      ASSERT_TRUE(wait([&] { return scheduler_->requests() > 0; }));
    }
    EXPECT_EQ(scheduler_->limits_of("aa-1"), "4096/30");
    EXPECT_EQ(scheduler_->limits_of("bb-2"), "2048/100");
    EXPECT_FALSE(scheduler_->has_complete_list());
    fs::remove(checkpoint);
    write_checkpoint(folder_, checkpoint_text(two));
    EXPECT_TRUE(wait([&] { return scheduler_->has_complete_list(); }));
    EXPECT_EQ(scheduler_->limits_of("aa-1"), "4096/30");
  }
  write_checkpoint(folder_, checkpoint_text(held("bb-2", {"GPU-a::1"}, 2, 100)));
  EXPECT_TRUE(comes("aa-1", ""));
}

TEST_F(PodLimitControllerTest, GrantsLowerAnnotationsAndHoldForPodsThatOnlyTheKubeletKnows) {
  const std::string train =
      server_->add_pod("train", {{"nvshare.com/gpu", 2}, {"nvshare.com/gpu-memory", 8}, {"nvshare.com/gpu-core", 100}});
  start_scheduler();
  start();
  EXPECT_TRUE(comes(train, "8192/100"));
  auto entries = held(train, {"GPU-a::1", "GPU-b::0"}, 8, 100);
  for (auto& entry : held(kStatic, {"GPU-a::0"}, 3, 20)) entries.push_back(entry);
  write_checkpoint(folder_, checkpoint_text(entries));
  EXPECT_TRUE(comes(train, "8192/50 GPU-a 4096 GPU-b 4096")) << scheduler_->limits_of(train);
  EXPECT_TRUE(comes(kStatic, "3072/20"));
  server_->annotate("train", kCoreAnnotation, "70");
  server_->annotate("train", kMemoryAnnotation, "1Gi");
  EXPECT_TRUE(comes(train, "1024/50"));
  server_->annotate("train", kCoreAnnotation, "10");
  EXPECT_TRUE(comes(train, "1024/10"));
  controller_->held({{"team", "train", "main", {"GPU-a::1"}, {}, {}}});
  server_->delete_pod("train");
  // Deleted by force, while the kubelet still lists its devices and its processes may go on: nothing is lifted.
  EXPECT_TRUE(comes(train, "1024/10 GPU-a 4096 GPU-b 4096")) << scheduler_->limits_of(train);
  write_checkpoint(folder_, checkpoint_text(held(kStatic, {"GPU-a::0"}, 3, 20)));
  EXPECT_TRUE(comes(train, ""));
}

// At the API server a static pod has another UID than in the kubelet's checkpoint and in cgroups, and says so in an annotation.
TEST_F(PodLimitControllerTest, AStaticPodsAnnotationsAreItsMirrors) {
  const std::map<std::string, int> asks = {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 3}};
  const std::string mirror = server_->add_pod("edge-node-1", asks);
  server_->annotate("edge-node-1", kMirrorAnnotation, kStatic);
  server_->annotate("edge-node-1", kCoreAnnotation, "40");
  // Another one that says it is the same, as anybody may write.
  const std::string forged = server_->add_pod("forged", asks);
  server_->annotate("forged", kMirrorAnnotation, kStatic);
  server_->annotate("forged", kCoreAnnotation, "1");
  write_checkpoint(folder_, checkpoint_text(held(kStatic, {"GPU-a::0"}, 3, 0)));
  start_scheduler();
  start();
  EXPECT_TRUE(comes(kStatic, "3072/100")) << "its name is not known yet";
  EXPECT_TRUE(comes(forged, "3072/1")) << "of itself it may say what it likes";
  controller_->held({{"team", "edge-node-1", "main", {"GPU-a::0"}, {}, {}}});
  EXPECT_TRUE(comes(kStatic, "3072/40"));
  EXPECT_TRUE(comes(mirror, "")) << "no process is in a pod of that UID";
  server_->annotate("edge-node-1", kMemoryAnnotation, "1Gi");
  EXPECT_TRUE(comes(kStatic, "1024/40"));
  server_->annotate("forged", kMemoryAnnotation, "128Mi");
  EXPECT_TRUE(comes(forged, "128/1"));
  EXPECT_EQ(scheduler_->limits_of(kStatic), "1024/40");
  // Over a restart with no API server, and no list of the kubelet.
  start({"https://127.0.0.1:1", folder_});
  scheduler_.reset();
  start_scheduler();
  EXPECT_TRUE(comes(kStatic, "1024/40"));
  start();
  server_->annotate("edge-node-1", kMemoryAnnotation, "");
  EXPECT_TRUE(comes(kStatic, "3072/40"));
  server_->begin_deletion("edge-node-1");
  server_->annotate("edge-node-1", kCoreAnnotation, "50");
  EXPECT_TRUE(comes(kStatic, "3072/50")) << "deleting a mirror ends no static pod: " << scheduler_->limits_of(kStatic);
  server_->delete_pod("edge-node-1");
  server_->annotate("forged", kMemoryAnnotation, "256Mi");
  EXPECT_TRUE(comes(forged, "256/1"));
  EXPECT_EQ(scheduler_->limits_of(kStatic), "3072/50") << "the kubelet makes another mirror, which says what holds";
}

// The plugin starts anew: what held goes on holding, also a bad annotation's last good value, and also while no API server answers.
TEST_F(PodLimitControllerTest, ARestartForgetsNothing) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  server_->annotate("train", kMemoryAnnotation, "2Gi");
  start_scheduler();
  start();
  EXPECT_TRUE(comes(train, "2048/100"));
  server_->annotate("train", kMemoryAnnotation, "lots");
  EXPECT_NE(event(0).find("BadLimit"), std::string::npos);
  scheduler_.reset();
  start_scheduler();
  const int lists = server_->lists();
  start();
  EXPECT_TRUE(comes(train, "2048/100"));
  ASSERT_TRUE(wait([&] { return server_->lists() > lists; }));
  server_->annotate("train", kCoreAnnotation, "40");
  EXPECT_TRUE(comes(train, "2048/40")) << "the list said 'lots' again";
  EXPECT_EQ(server_->events().size(), 1u) << "which was recorded already";
  // No API server lists the pods; the kubelet's word comes all the same, and takes nothing from others.
  const ApiServerAddress nowhere{"https://127.0.0.1:1", folder_};
  controller_.reset();
  write_checkpoint(folder_, checkpoint_text(held(kStatic, {"GPU-a::0"}, 3, 20)));
  scheduler_.reset();
  start_scheduler();
  start(nowhere);
  EXPECT_TRUE(comes(train, "2048/40"));
  EXPECT_TRUE(comes(kStatic, "3072/20"));
  controller_.reset();
  for (const char* damaged : {"", "{\"format\":1,\"pods\":[{\"uid\":\"a\"", "{\"format\":2,\"pods\":[]}"}) {
    std::ofstream(folder_ + "/limits.json") << damaged;
    scheduler_.reset();
    start_scheduler();
    start(nowhere);
    EXPECT_TRUE(comes(kStatic, "3072/20"));
    EXPECT_FALSE(scheduler_->has_complete_list());
  }
}

// NVSHARE_GPU_MEMORY_UNIT is another one from now on; a pod that runs has what it was granted, by the kubelet's and by the API server's
// word.
TEST_F(PodLimitControllerTest, AnotherUnitOfMemoryChangesNothingOfPodsThatRun) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  auto entries = held(train, {"GPU-a::0"}, 4, 0);
  for (auto& entry : held(kStatic, {"GPU-a::1"}, 2, 0)) entries.push_back(entry);
  write_checkpoint(folder_, checkpoint_text(entries));
  server_->add_pod("edge-node-1", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 2}});
  server_->annotate("edge-node-1", kMirrorAnnotation, kStatic);
  server_->annotate("edge-node-1", kCoreAnnotation, "40");
  start_scheduler();
  start();
  controller_->held({{"team", "edge-node-1", "main", {"GPU-a::1"}, {}, {}}});
  ASSERT_TRUE(wait([&] { return scheduler_->has_complete_list(); }));
  for (const int64_t unit : {2 * kGib, kGib / 2, kGib}) {
    memory_unit_ = unit;
    scheduler_.reset();
    start_scheduler();
    start();
    ASSERT_TRUE(wait([&] { return scheduler_->has_complete_list(); }));
    EXPECT_TRUE(comes(train, "4096/100")) << scheduler_->limits_of(train);
    EXPECT_TRUE(comes(kStatic, "2048/40")) << scheduler_->limits_of(kStatic);
    server_->annotate("train", kMemoryAnnotation, "3Gi");
    EXPECT_TRUE(comes(train, "3072/100")) << scheduler_->limits_of(train);
    server_->annotate("train", kMemoryAnnotation, "");
    EXPECT_TRUE(comes(train, "4096/100")) << scheduler_->limits_of(train);
    const std::string late = server_->add_pod("late-" + std::to_string(unit), {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
    EXPECT_TRUE(comes(late, std::to_string(4 * unit >> 20) + "/100")) << "a new pod has the unit of today";
  }
}

// The record is lost, or could not be written for a while, and no API server answers: grants are more than what annotations left.
TEST_F(PodLimitControllerTest, NoLimitIsRaisedBeforeTheApiServerIsHeard) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 4}});
  write_checkpoint(folder_, checkpoint_text(held(train, {"GPU-a::0"}, 4, 0)));
  start_scheduler();
  start();
  ASSERT_TRUE(comes(train, "4096/100"));
  controller_.reset();
  const auto old = read_file(folder_ + "/limits.json");
  ASSERT_TRUE(old);
  start();
  server_->annotate("train", kMemoryAnnotation, "1Gi");
  server_->annotate("train", kCoreAnnotation, "30");
  ASSERT_TRUE(comes(train, "1024/30"));
  const ApiServerAddress nowhere{"https://127.0.0.1:1", folder_};
  for (const std::string& record : {std::string(), std::string("{"), *old}) {
    controller_.reset();
    fs::remove(folder_ + "/pod-grants.json");
    fs::remove(folder_ + "/limits.json");
    if (!record.empty()) std::ofstream(folder_ + "/limits.json") << record;
    scheduler_->forget_requests();
    start(nowhere);
    auto entries = held(train, {"GPU-a::0"}, 4, 0);
    for (auto& entry : held("cc-3", {"GPU-a::2"}, 2, 0)) entries.push_back(entry);
    write_checkpoint(folder_, checkpoint_text(entries));
    EXPECT_TRUE(comes("cc-3", "2048/100")) << "a pod of which nothing was known has what it was granted";
    EXPECT_EQ(scheduler_->limits_of(train), "1024/30") << record;
    EXPECT_FALSE(scheduler_->has_complete_list());
    write_checkpoint(folder_, checkpoint_text(held(train, {"GPU-a::0"}, 4, 0)));
    EXPECT_TRUE(comes("cc-3", ""));
  }
  controller_.reset();
  start();
  server_->annotate("train", kMemoryAnnotation, "");
  EXPECT_TRUE(comes(train, "4096/30")) << "which may raise them";
}

// Each of the ways to fail, in turn, fifty times: changes are made before, while and after. NVSHARE_TEST_DISCONNECTS=750 for fifty of each.
TEST_F(PodLimitControllerTest, AfterFiftyDisconnectsOfEveryKindNoChangeIsMissed) {
  const std::string train = server_->add_pod("train", {{"nvshare.com/gpu", 1}});
  const std::string serve = server_->add_pod("serve", {{"nvshare.com/gpu", 1}});
  start_scheduler();
  start();
  ASSERT_TRUE(comes(train, "0/100"));
  std::string passing;
  const char* wanted = std::getenv("NVSHARE_TEST_DISCONNECTS");
  const int rounds = wanted != nullptr ? std::max(std::atoi(wanted), 50) : 50;
  for (int round = 0; round < rounds; ++round) {
    const auto fault = static_cast<Fault>(round % TestApiServer::kFaults);
    SCOPED_TRACE("round " + std::to_string(round) + ", fault " + std::to_string(round % TestApiServer::kFaults));
    const std::string first = std::to_string(1 + round % 99);
    const std::string last = std::to_string(1 + (round * 7 + 3) % 99);
    server_->annotate("train", kCoreAnnotation, first);
    ASSERT_TRUE(round % 3 != 0 || comes(train, "0/" + first));
    const int watches = server_->watches();
    server_->fault(fault);
    server_->annotate("serve", kCoreAnnotation, first);
    if (round % 2 == 0 && !passing.empty()) server_->delete_pod("passing");
    const std::string before = round % 2 == 0 ? std::exchange(passing, "") : "";
    if (round % 2 == 1) passing = server_->add_pod("passing", {{"nvshare.com/gpu", 1}});
    if (round % 5 == 0) server_->bookmark();
    server_->annotate("train", kCoreAnnotation, last);
    ASSERT_TRUE(comes(train, "0/" + last));
    ASSERT_TRUE(comes(serve, "0/" + first));
    ASSERT_TRUE(passing.empty() || comes(passing, "0/100"));
    ASSERT_TRUE(before.empty() || comes(before, ""));
    ASSERT_TRUE(wait([&] { return server_->watches() > watches; })) << "it did not break";
  }
  EXPECT_GT(server_->lists(), 10);
  EXPECT_GT(server_->unauthorized(), 0) << "no token was refused";
  EXPECT_EQ(scheduler_->connections(), 1) << "what breaks there is nothing to the scheduler";
}

// More pods than one request takes.
TEST_F(PodLimitControllerTest, AllPodsOfALargeNodeReachTheScheduler) {
  start_scheduler();
  LimitPublisher::Pods pods(2 * protocol::admin::kPodsMax + 1);
  for (size_t i = 0; i < pods.size(); ++i) {
    pods[i].uid = std::to_string(i);
    pods[i].gpu_core_limit = 30;
  }
  LoopThread loop;
  LimitPublisher publisher(loop, folder_ + "/run");
  publisher.set_wanted(pods, true);
  const auto all_have = [&](const std::string& limits) {
    return std::all_of(pods.begin(), pods.end(), [&](const auto& pod) { return scheduler_->limits_of(pod.uid) == limits; });
  };
  ASSERT_TRUE(wait([&] { return scheduler_->has_complete_list() && all_have("0/30"); }));
  EXPECT_EQ(scheduler_->requests(), 3);
  for (auto& pod : pods) pod.gpu_core_limit = 40;
  publisher.set_wanted(pods, true);
  EXPECT_TRUE(wait([&] { return all_have("0/40"); }));
}

TEST_F(PodLimitControllerTest, AStrangersCertificateIsNotBelieved) {
  const std::string other = folder_ + "/other";
  fs::create_directories(other);
  TestApiServer stranger(other);
  stranger.add_pod("train", {{"nvshare.com/gpu", 1}});
  ApiServerAddress address = stranger.address();
  address.service_account = folder_;  // another CA
  ApiServer client(address);
  auto reply = client.send(ApiRequest::get("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1"), {});
  ASSERT_FALSE(reply);
  EXPECT_NE(std::string(reply.error().text).find("certificate"), std::string::npos) << reply.error().text;
  address.service_account = folder_ + "/nowhere";
  ApiServer without(address);
  EXPECT_FALSE(without.send(ApiRequest::get("/api/v1/pods"), {}));
}

}  // namespace
}  // namespace nvshare::kubernetes
