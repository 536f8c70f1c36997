// Claims from end to end, over real sockets: a stand-in kubelet that prepares and unprepares, with restarts of both sides.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <mutex>
#include <random>
#include <set>

#include "kubernetes/dra/claim_cdi.h"
#include "kubernetes/dra/kubelet/dra_server.h"
#include "kubernetes/dra/kubelet/test_dra_kubelet.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/pods/test_listening_scheduler.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace fs = std::filesystem;

constexpr int kGpus = 4;
constexpr int kClaims = 60;

class DraKubeletTest : public testing::Test {
 protected:
  DraKubeletTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-dra-kubelet-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    options_.pool = kTestNode;
    options_.devices = test_devices(kGpus);
    options_.state_dir = folder_ + "/state";
    options_.cdi_dir = folder_ + "/cdi";
    options_.runtime_dir = folder_ + "/run";
    options_.mounts = {{"/in/lib.so", "/host/lib.so"}};
    spdlog::set_level(spdlog::level::off);
    scheduler_ = std::make_unique<ListeningScheduler>(options_.runtime_dir);
    start_kubelet();
  }
  ~DraKubeletTest() override {
    stop_driver();
    scheduler_.reset();
    fs::remove_all(folder_);
  }

  void start_kubelet(const std::vector<std::string>& versions = {"v1.DRAPlugin", "v1beta1.DRAPlugin"}) {
    kubelet_ = std::make_unique<TestDraKubelet>(folder_, versions);
  }
  void stop_driver() {
    server_.reset();
    driver_.reset();
  }
  void start_driver() {
    stop_driver();
    auto driver = ClaimDriver::open(loop_, options_, [this](const ClaimName& name) -> Result<std::string> {
      std::lock_guard lock(mutex_);
      const auto found = objects_.find(name.uid);
      if (found == objects_.end()) return error_format("404");
      return found->second.dump();
    });
    ASSERT_TRUE(driver) << driver.error().text;
    driver_ = std::move(*driver);
    auto server = DraServer::serve({TestDraKubelet::registration_socket(folder_), TestDraKubelet::service_socket(folder_)}, *driver_);
    ASSERT_TRUE(server) << server.error().text;
    server_ = std::move(*server);
  }
  void add(int number, const std::vector<TestPart>& parts) {
    std::lock_guard lock(mutex_);
    objects_[test_uid(number)] = test_claim(number, parts);
  }
  size_t specs() const {
    return fs::exists(options_.cdi_dir) ? static_cast<size_t>(std::distance(fs::directory_iterator(options_.cdi_dir), {})) : 0;
  }

  std::string folder_;
  DriverOptions options_;
  std::mutex mutex_;
  std::map<std::string, Json> objects_;  // guarded by mutex_
  std::unique_ptr<ListeningScheduler> scheduler_;
  std::unique_ptr<TestDraKubelet> kubelet_;
  LoopThread loop_;
  std::unique_ptr<ClaimDriver> driver_;
  std::unique_ptr<DraServer> server_;
};

TEST_F(DraKubeletTest, EachKubeletTakesTheFirstVersionThatItKnows) {
  const std::pair<std::vector<std::string>, std::string> kubelets[] = {{{"v1beta1.DRAPlugin", "v1.DRAPlugin"}, "v1.DRAPlugin"},
                                                                       {{"v1beta1.DRAPlugin"}, "v1beta1.DRAPlugin"}};
  add(1, {{0, "4Gi", "25"}});
  for (const auto& [versions, taken] : kubelets) {
    start_driver();
    start_kubelet(versions);
    EXPECT_FALSE(server_->registered());
    const auto version = kubelet_->find_driver();
    ASSERT_TRUE(version) << version.error().text;
    EXPECT_EQ(*version, taken);
    EXPECT_TRUE(server_->registered());
    const auto prepared = kubelet_->prepare({test_claim_name(1)});
    ASSERT_TRUE(prepared) << prepared.error().text;
    const auto& entry = prepared->at(test_uid(1));
    EXPECT_EQ(entry.error, "");
    ASSERT_EQ(entry.devices.size(), 1U);
    EXPECT_EQ(entry.devices[0].device, device_name(test_gpu(0)));
    EXPECT_EQ(entry.devices[0].cdi_ids.size(), 2U);
    EXPECT_EQ(entry.devices[0].share_id, taken == "v1.DRAPlugin" ? test_uid(100) : "") << "v1beta1 has no such field";
  }
  start_kubelet({"v2.DRAPlugin"});
  EXPECT_FALSE(kubelet_->find_driver());
  EXPECT_FALSE(server_->registered());
}

TEST_F(DraKubeletTest, EachClaimOfACallHasItsOwnEntryAndError) {
  start_driver();
  ASSERT_TRUE(kubelet_->find_driver());
  add(1, {{0, "4Gi", "25"}});
  add(2, {{0, "15Gi", "25"}});
  const ClaimName outside{"team", "claim", "../../x"};
  const auto prepared = kubelet_->prepare({test_claim_name(1), test_claim_name(2), test_claim_name(3), outside});
  ASSERT_TRUE(prepared) << prepared.error().text;
  ASSERT_EQ(prepared->size(), 4U);
  EXPECT_EQ(prepared->at(test_uid(1)).error, "");
  EXPECT_NE(prepared->at(test_uid(2)).error.find("do not fit"), std::string::npos);
  EXPECT_NE(prepared->at(test_uid(3)).error.find("404"), std::string::npos);
  EXPECT_NE(prepared->at("../../x").error.find("no UID of a claim"), std::string::npos);
  const auto unprepared = kubelet_->unprepare({test_claim_name(1), test_claim_name(2), test_claim_name(3), outside});
  ASSERT_TRUE(unprepared);
  ASSERT_EQ(unprepared->size(), 4U);
  for (const auto& [uid, entry] : *unprepared) EXPECT_EQ(entry.error, "") << uid;
  EXPECT_EQ(specs(), 0U);
}

// The kubelet ends, or its patience does, while the API server is asked; meanwhile the pod goes. Nobody would unprepare the claims again.
TEST_F(DraKubeletTest, WhatWasUnpreparedWhileItWasLookedUpStaysUnprepared) {
  start_driver();
  ASSERT_TRUE(kubelet_->find_driver());
  add(1, {{0, "8Gi", "50"}});
  add(2, {{0, "8Gi", "50"}});
  {
    const std::lock_guard api_server_is_slow(mutex_);
    EXPECT_FALSE(kubelet_->prepare({test_claim_name(1), test_claim_name(2)}, std::chrono::milliseconds(300)));
    EXPECT_TRUE(kubelet_->unprepare({test_claim_name(1), test_claim_name(2)}));
  }
  server_.reset();  // waits for the call
  EXPECT_EQ(driver_->prepared(), 0U);
  EXPECT_EQ(specs(), 0U);
  start_driver();
  ASSERT_TRUE(kubelet_->find_driver());
  add(3, {{0, "16Gi", "100"}});
  const auto prepared = kubelet_->prepare({test_claim_name(3)});
  ASSERT_TRUE(prepared) << prepared.error().text;
  EXPECT_EQ(prepared->at(test_uid(3)).error, "");
}

// Kubernetes' allocator, as far as sums over a GPU go.
struct Allocator {
  int64_t memory_mib[kGpus] = {};
  int cores[kGpus] = {};
  struct Given {
    int gpu;
    int memory_mib, cores;
  };
  std::map<int, std::vector<Given>> claims;

  bool allocate(int number, const std::vector<Given>& wanted) {
    std::vector<Given> given;
    for (Given one : wanted) {
      for (one.gpu = 0; one.gpu < kGpus; ++one.gpu) {
        if (memory_mib[one.gpu] + one.memory_mib <= 16384 && cores[one.gpu] + one.cores <= 100) break;
      }
      if (one.gpu == kGpus) {
        for (const Given& back : given) give_back(back);
        return false;
      }
      memory_mib[one.gpu] += one.memory_mib;
      cores[one.gpu] += one.cores;
      given.push_back(one);
    }
    claims[number] = given;
    return true;
  }
  void give_back(const Given& one) {
    memory_mib[one.gpu] -= one.memory_mib;
    cores[one.gpu] -= one.cores;
  }
  void release(int number) {
    for (const Given& one : claims.at(number)) give_back(one);
    claims.erase(number);
  }
};

TEST_F(DraKubeletTest, ClaimsInAnyOrderOverRestartsOfBothSidesAndVersions) {
  std::mt19937 random(20);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  Allocator allocator;
  std::map<int, TestDraKubelet::Entry> answers;
  start_driver();
  ASSERT_TRUE(kubelet_->find_driver());
  int next = 1;
  while (next <= kClaims || !allocator.claims.empty()) {
    const int what = below(10);
    if (what < 5 && next <= kClaims) {
      std::vector<Allocator::Given> wanted(static_cast<size_t>(1 + below(2)));
      for (auto& one : wanted) one = {0, 1 + below(6000), 1 + below(30)};
      if (allocator.allocate(next, wanted)) {
        std::vector<TestPart> parts;
        for (const auto& one : allocator.claims.at(next))
          parts.push_back({one.gpu, std::to_string(one.memory_mib) + "Mi", std::to_string(one.cores), "main"});
        add(next, parts);
        auto prepared = kubelet_->prepare({test_claim_name(next)});
        ASSERT_TRUE(prepared) << prepared.error().text;
        answers[next] = prepared->at(test_uid(next));
        ASSERT_EQ(answers[next].error, "") << "claim " << next;
        ASSERT_EQ(answers[next].devices.size(), parts.size());
        ++next;
      }
    } else if (what < 8 && !allocator.claims.empty()) {
      const int number = std::next(allocator.claims.begin(), below(static_cast<int>(allocator.claims.size())))->first;
      {
        std::lock_guard lock(mutex_);
        objects_.erase(test_uid(number));  // deleted before, as it may be
      }
      auto unprepared = kubelet_->unprepare({test_claim_name(number)});
      ASSERT_TRUE(unprepared) << unprepared.error().text;
      ASSERT_EQ(unprepared->at(test_uid(number)).error, "");
      ASSERT_EQ(scheduler_->limits_of(test_uid(900000 + number)), "");
      allocator.release(number);
      answers.erase(number);
    } else if (what == 8 && below(2) == 0) {
      start_driver();
      ASSERT_TRUE(kubelet_->find_driver());
    } else if (what == 9 && below(2) == 0) {
      start_kubelet(below(2) == 0 ? std::vector<std::string>{"v1.DRAPlugin"}
                                  : std::vector<std::string>{"v1beta1.DRAPlugin", "v1.DRAPlugin"});
      ASSERT_TRUE(kubelet_->find_driver());
      // A kubelet that has started prepares what its pods have again.
      for (auto& [number, answer] : answers) {
        auto again = kubelet_->prepare({test_claim_name(number)});
        ASSERT_TRUE(again) << again.error().text;
        ASSERT_EQ(again->at(test_uid(number)), answer) << "claim " << number;
      }
    }
    ASSERT_EQ(driver_->prepared(), allocator.claims.size());
    ASSERT_EQ(specs(), allocator.claims.size());
  }
  EXPECT_TRUE(driver_->prepare(test_claim_name(1)).error().text[0] != 0) << "its object is gone";
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
