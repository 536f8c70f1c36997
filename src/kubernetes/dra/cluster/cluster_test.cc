// What stands at the API server: slices over everything that others do to them, claims, and what became of their devices.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "kubernetes/dra/cluster/claim_reader.h"
#include "kubernetes/dra/cluster/slice_controller.h"
#include "kubernetes/dra/cluster/status_writer.h"
#include "kubernetes/dra/cluster/test_cluster.h"
#include "kubernetes/dra/test_claims.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr char kSlicePath[] = "/resourceslices";

class DraClusterTest : public testing::Test {
 protected:
  DraClusterTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-dra-cluster-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    spdlog::set_level(spdlog::level::off);
    std::signal(SIGPIPE, SIG_IGN);  // as the program does
    cluster_ = std::make_unique<TestCluster>(folder_);
  }
  ~DraClusterTest() override {
    store_.reset();
    cluster_.reset();
    fs::remove_all(folder_);
  }

  void start_keeper(const DeviceModels& devices) {
    ObjectWatch::Pace pace;
    pace.first_pause = milliseconds(1);
    pace.longest_pause = milliseconds(20);
    store_ = std::make_unique<SliceController>(loop_, SliceController::Options{cluster_->address(), kTestNode, pace}, devices);
  }
  // Without a limit of its own: the test's timeout ends what never comes.
  static void wait_until(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::sleep_for(milliseconds(1));
  }
  bool holds(const DeviceModels& devices) {
    return !store_->trouble() && plan_slices({kTestNode, ""}, devices, cluster_->slices()).empty();
  }

  std::string folder_;
  std::unique_ptr<TestCluster> cluster_;
  LoopThread loop_;
  std::unique_ptr<SliceController> store_;
};

TEST_F(DraClusterTest, SlicesArePublishedAndRepaired) {
  const DeviceModels devices = test_devices(3);
  start_keeper(devices);
  wait_until([&] { return holds(devices); });
  ASSERT_EQ(cluster_->slices().size(), 1U);
  EXPECT_EQ(text_of(cluster_->slices()[0]["metadata"]["ownerReferences"][0], "kind"), "Node");
  cluster_->change_slice([](Json* slice) { (*slice)["spec"]["devices"].erase(1); });
  wait_until([&] { return holds(devices); });
  cluster_->delete_slices();
  wait_until([&] { return holds(devices); });
  EXPECT_EQ(cluster_->slices().size(), 1U);
}

TEST_F(DraClusterTest, AGpuThatFallsIllIsPublishedSoAndWellAgain) {
  DeviceModels devices = test_devices(2);
  start_keeper(devices);
  wait_until([&] { return holds(devices); });
  devices[1].ailment = "XID 79";
  store_->set_devices(devices);
  wait_until([&] { return holds(devices); });
  EXPECT_EQ(cluster_->slices()[0]["spec"]["devices"][1]["taints"].size(), 1U);
  devices[1].ailment.clear();
  store_->set_devices(devices);
  wait_until([&] { return holds(devices); });
  EXPECT_FALSE(cluster_->slices()[0]["spec"]["devices"][1].contains("taints"));
}

TEST_F(DraClusterTest, WhatIsOfOthersStays) {
  const auto slice = [](const char* name, const char* driver, const char* node) {
    return Json{
        {"metadata", {{"name", name}}},
        {"spec", {{"driver", driver}, {"nodeName", node}, {"pool", {{"name", node}, {"generation", 1}}}, {"devices", Json::array()}}}};
  };
  cluster_->add_slice(slice("a", "gpu.example.com", kTestNode));
  cluster_->add_slice(slice("b", kDriverName, "node-2"));
  Json old_pool = slice("c", kDriverName, kTestNode);
  old_pool["spec"]["pool"]["name"] = "another-pool";
  cluster_->add_slice(old_pool);
  const DeviceModels devices = test_devices(1);
  start_keeper(devices);
  wait_until([&] { return holds(devices); });
  std::string names;
  for (const Json& one : cluster_->slices()) names += text_of(one["metadata"], "name").substr(0, 5) + " ";
  EXPECT_EQ(names, "00000 a b ") << "and of ours what is of no use went";
}

TEST_F(DraClusterTest, EachRefusalIsTriedAgainAndTold) {
  const DeviceModels devices = test_devices(2);
  cluster_->refuse("GET", kSlicePath, 500, 3);
  cluster_->refuse("GET", "/nodes/", 403);
  cluster_->refuse("POST", kSlicePath, 429, 2);
  start_keeper(devices);
  wait_until([&] { return holds(devices); });
  cluster_->refuse("PUT", kSlicePath, 409);
  cluster_->refuse("PUT", kSlicePath, 503);
  cluster_->change_slice([](Json* slice) { (*slice)["spec"]["devices"].clear(); });
  wait_until([&] { return cluster_->requests("PUT", kSlicePath) >= 3 && holds(devices); });
  cluster_->cut_watches();
  cluster_->change_slice([](Json* slice) { (*slice)["spec"]["devices"].clear(); });
  wait_until([&] { return cluster_->requests("PUT", kSlicePath) >= 4 && holds(devices); });
  cluster_->refuse("POST", kSlicePath, 403, 1000000);
  cluster_->delete_slices();
  wait_until([&] { return store_->trouble() && store_->trouble()->find("creating: the API server answers 403") != std::string::npos; });
}

TEST_F(DraClusterTest, ANodeThatWasMadeAnewOwnsTheNextSlices) {
  const DeviceModels devices = test_devices(1);
  start_keeper(devices);
  wait_until([&] { return holds(devices); });
  cluster_->renew_node();
  cluster_->delete_slices();  // as the garbage collector does, since their owner is gone
  wait_until([&] { return holds(devices); });
  EXPECT_EQ(text_of(cluster_->slices()[0]["metadata"]["ownerReferences"][0], "uid"), test_uid(700001));
}

TEST_F(DraClusterTest, AFeatureGateThatIsOffIsNamedAndDoesNotFloodTheServer) {
  cluster_->drop_from_devices("allowMultipleAllocations");
  const DeviceModels devices = test_devices(1);
  start_keeper(devices);
  wait_until([&] { return store_->trouble() && store_->trouble()->find("DRAConsumableCapacity") != std::string::npos; });
  wait_until([&] { return cluster_->requests("PUT", kSlicePath) >= 2; });
  EXPECT_EQ(cluster_->slices().size(), 1U);
  cluster_->drop_from_devices("");
  wait_until([&] { return holds(devices); });
}

TEST_F(DraClusterTest, ClaimsAreReadSeveralAtATimeAndInterrupted) {
  ClaimReader reader(cluster_->address());
  for (int number = 1; number <= 4; ++number) cluster_->put_claim(test_claim(number, {{}}));
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int number = 1; number <= 4; ++number) {
    threads.emplace_back([&, number] {
      const auto read = reader.read(test_claim_name(number));
      good += read && Json::parse(*read) == test_claim(number, {{}}) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
  EXPECT_STREQ(reader.read(test_claim_name(9)).error().text, "the API server has no such claim");
  cluster_->refuse("GET", "/resourceclaims/", 403);
  EXPECT_NE(std::string(reader.read(test_claim_name(1)).error().text).find("answers 403"), std::string::npos);
  reader.interrupt();
  EXPECT_STREQ(reader.read(test_claim_name(1)).error().text, "this driver ends");
}

Claim prepared_claim(int number) {
  const DeviceModels devices = test_devices(1);
  auto claim = read_claim(test_claim(number, {{}}).dump(), test_claim_name(number), {kTestNode, devices, 0});
  return claim ? *claim : Claim{};
}

TEST_F(DraClusterTest, StatusIsWrittenWhenTheServerTakesIt) {
  LoopThread loop;
  StatusWriter writer(loop, cluster_->address(), kTestNode, {milliseconds(1), milliseconds(4), 5});
  for (int number = 1; number <= 3; ++number) cluster_->put_claim(test_claim(number, {{}}));
  const auto devices_of = [&](int number) { return cluster_->claim("team", "claim-" + std::to_string(number))["status"]["devices"]; };
  cluster_->refuse("PATCH", "/claim-1/status", 503, 2);
  cluster_->refuse("PATCH", "/claim-2/status", 403, 1000000);
  writer.prepared(prepared_claim(1));
  writer.prepared(prepared_claim(2));
  Claim made_anew = prepared_claim(3);
  made_anew.uid = test_uid(33);
  writer.prepared(made_anew);
  wait_until([&] { return !devices_of(1).is_null(); });
  const Json device = devices_of(1).at(0);
  EXPECT_EQ(text_of(device, "driver"), kDriverName);
  EXPECT_EQ(text_of(device, "pool"), kTestNode);
  EXPECT_EQ(text_of(device, "device"), device_name(test_gpu(0)));
  EXPECT_EQ(text_of(device, "shareID"), test_uid(100));
  EXPECT_EQ(text_of(device["conditions"][0], "type"), "Ready");
  wait_until([&] { return cluster_->requests("PATCH", "/claim-2/status") == 5; });
  wait_until([&] { return cluster_->requests("PATCH", "/claim-3/status") == 1; });
  EXPECT_TRUE(devices_of(2).is_null());
  EXPECT_TRUE(devices_of(3).is_null()) << "another claim of this name";
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
