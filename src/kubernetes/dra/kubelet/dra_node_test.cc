// The whole driver between a stand-in kubelet, a stand-in API server and a scheduler that listens: from published slices, which an
// allocator shares out, to claims in force, over restarts of all sides and with each call failed.
#include "kubernetes/dra/kubelet/dra_node.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "kubernetes/dra/claim_cdi.h"
#include "kubernetes/dra/cluster/test_cluster.h"
#include "kubernetes/dra/driver_settings.h"
#include "kubernetes/dra/kubelet/test_dra_kubelet.h"
#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/pods/test_listening_scheduler.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kGpus = 4;
constexpr int64_t kMib = 1 << 20;

// Kubernetes' allocator, as far as consumable capacity of published devices goes: first fit in the order of the slices.
class SliceAllocator {
 public:
  struct Wish {
    int64_t memory = 0;
    int64_t cores = 0;
  };
  // The claim as it stands at the API server once it is allocated; null: it does not fit now.
  Json allocate(int number, const std::vector<Wish>& wishes, const std::vector<Json>& slices) {
    Json claim = test_claim(number, {});
    Json& results = claim["status"]["allocation"]["devices"]["results"];
    std::vector<std::pair<std::string, Wish>> given;
    for (const Wish& wish : wishes) {
      const std::string device = first_fit(wish, slices);
      if (device.empty()) {
        for (const auto& [name, back] : given) add(name, {-back.memory, -back.cores});
        return {};
      }
      add(device, wish);
      given.emplace_back(device, wish);
      results.push_back({{"request", "main"},
                         {"driver", kDriverName},
                         {"pool", kTestNode},
                         {"device", device},
                         {"shareID", test_uid(number * 100 + static_cast<int>(given.size()))},
                         {"consumedCapacity", {{"memory", bytes_quantity(wish.memory)}, {"cores", std::to_string(wish.cores)}}}});
    }
    claims_[number] = given;
    return claim;
  }
  void release(int number) {
    for (const auto& [name, back] : claims_.at(number)) add(name, {-back.memory, -back.cores});
    claims_.erase(number);
  }
  const std::map<int, std::vector<std::pair<std::string, Wish>>>& claims() const { return claims_; }

 private:
  void add(const std::string& device, const Wish& wish) {
    used_[device].memory += wish.memory;
    used_[device].cores += wish.cores;
  }
  std::string first_fit(const Wish& wish, const std::vector<Json>& slices) {
    for (const Json& slice : slices) {
      for (const Json& device : slice["spec"]["devices"]) {
        if (device.contains("taints") || !is_true(device, "allowMultipleAllocations")) continue;
        const auto amount = [&](const char* name) { return *parse_quantity(text_of(device["capacity"][name], "value")); };
        const Wish& used = used_[text_of(device, "name")];
        if (used.memory + wish.memory <= amount("memory") && used.cores + wish.cores <= amount("cores")) return text_of(device, "name");
      }
    }
    return {};
  }
  std::map<std::string, Wish> used_;
  std::map<int, std::vector<std::pair<std::string, Wish>>> claims_;
};

class DraNodeTest : public testing::Test {
 protected:
  DraNodeTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-dra-node-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    spdlog::set_level(spdlog::level::off);
    std::signal(SIGPIPE, SIG_IGN);  // as the program does
    settings_.node_name = kTestNode;
    settings_.install_dir = folder_ + "/state";
    settings_.cdi_dir = folder_ + "/cdi";
    settings_.runtime_dir = folder_ + "/run";
    settings_.plugins_dir = folder_ + "/plugins";
    settings_.registry_dir = folder_ + "/plugins_registry";
    settings_.scheduler_patience = 0;
    kubelet_ = std::make_unique<TestDraKubelet>(folder_, std::vector<std::string>{"v1.DRAPlugin"});
    scheduler_ = std::make_unique<ListeningScheduler>(settings_.runtime_dir);
    cluster_ = std::make_unique<TestCluster>(folder_);
  }
  ~DraNodeTest() override {
    node_.reset();
    cluster_.reset();
    scheduler_.reset();
    fs::remove_all(folder_);
  }

  void start() {
    node_.reset();
    DraNode::Options options;
    options.settings = settings_;
    options.api_server = cluster_->address();
    options.files = {"/host/lib.so", "/host/ld.so.preload"};
    for (int i = 0; i < kGpus; ++i) options.gpus.push_back({{test_gpu(i), 16 * kTestGib, true, -1}, "Stand-in", "", "", "", "", ""});
    options.pace.first_pause = milliseconds(1);
    options.pace.longest_pause = milliseconds(20);
    auto opened = DraNode::open(std::move(options));
    ASSERT_TRUE(opened) << opened.error().text;
    node_ = std::move(*opened);
    const auto version = kubelet_->find_driver();
    ASSERT_TRUE(version) << version.error().text;
    wait_for_slices();
  }
  // Without a limit of its own: the test's timeout ends what never comes.
  void wait_for_slices() {
    while (node_->slice_trouble() || !all_published()) std::this_thread::sleep_for(milliseconds(1));
  }
  bool all_published() const {
    const auto slices = cluster_->slices();
    return slices.size() == 1 && slices[0]["spec"]["devices"].size() == kGpus;
  }
  // The error in the answer to the kubelet; empty: it is prepared.
  std::string prepare(int number) {
    const auto entries = kubelet_->prepare({test_claim_name(number)});
    if (!entries) return entries.error().text;
    const auto& entry = entries->at(test_uid(number));
    if (entry.error.empty()) answers_[number] = entry;
    return entry.error;
  }
  std::string unprepare(int number) {
    const auto entries = kubelet_->unprepare({test_claim_name(number)});
    return entries ? entries->at(test_uid(number)).error : entries.error().text;
  }
  // No GPU has more in force than it has, and each pod what it was given.
  void check_limits(const SliceAllocator& allocator) {
    ASSERT_EQ(node_->prepared(), allocator.claims().size());
    for (const auto& [number, given] : allocator.claims()) {
      std::map<std::string, int64_t> memory;
      for (const auto& [device, wish] : given) memory[device] += wish.memory;
      std::string expected;
      for (const auto& [device, bytes] : memory) {
        for (int gpu = 0; gpu < kGpus; ++gpu) {
          if (device_name(test_gpu(gpu)) == device) expected += " " + test_gpu(gpu) + " " + std::to_string(bytes / kMib);
        }
      }
      const std::string limits = scheduler_->limits_of(test_uid(900000 + number));
      ASSERT_EQ(limits.substr(std::min(limits.find(' '), limits.size())), expected) << "claim " << number;
    }
  }

  std::string folder_;
  Settings settings_;
  std::unique_ptr<ListeningScheduler> scheduler_;
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<TestDraKubelet> kubelet_;
  std::unique_ptr<DraNode> node_;
  std::map<int, TestDraKubelet::Entry> answers_;
};

TEST_F(DraNodeTest, AClaimGoesAllTheWay) {
  start();
  EXPECT_TRUE(node_->registered());
  SliceAllocator allocator;
  const Json claim = allocator.allocate(1, {{4096 * kMib, 25}}, cluster_->slices());
  ASSERT_FALSE(claim.is_null());
  cluster_->put_claim(claim);
  EXPECT_EQ(prepare(1), "");
  check_limits(allocator);
  EXPECT_TRUE(fs::exists(cdi_file_of(settings_.cdi_dir, test_uid(1))));
  while (!cluster_->claim("team", "claim-1")["status"].contains("devices")) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(DraServer::probe(registration_socket_of(settings_), milliseconds(10'000)));
  node_.reset();
  EXPECT_FALSE(DraServer::probe(registration_socket_of(settings_), milliseconds(200)));
}

TEST_F(DraNodeTest, AGpuThatFallsIllGetsNoMoreClaims) {
  start();
  node_->set_health({test_gpu(0)}, false, "XID 79");
  const auto is_tainted = [&] { return cluster_->slices()[0]["spec"]["devices"][0].contains("taints"); };
  while (!is_tainted()) std::this_thread::sleep_for(milliseconds(1));
  SliceAllocator allocator;
  const Json claim = allocator.allocate(1, {{4096 * kMib, 25}}, cluster_->slices());
  EXPECT_EQ(text_of(claim["status"]["allocation"]["devices"]["results"][0], "device"), device_name(test_gpu(1)));
  node_->set_health({test_gpu(0)}, true, "");
  while (is_tainted()) std::this_thread::sleep_for(milliseconds(1));
}

// Over a restart of the driver, and of its watch.
TEST_F(DraNodeTest, AnnotationsLowerAClaimsLimitsWhileItsPodRuns) {
  start();
  SliceAllocator allocator;
  cluster_->put_claim(allocator.allocate(1, {{4096 * kMib, 25}}, cluster_->slices()));
  cluster_->put_pod(test_pod(1, {"claim-1"}));
  ASSERT_EQ(prepare(1), "");
  const std::string granted = scheduler_->limits_of(test_uid(900001));
  const auto wait_for = [&](const std::string& limits) {
    while (scheduler_->limits_of(test_uid(900001)) != limits) std::this_thread::sleep_for(milliseconds(1));
  };
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "1Gi");
  wait_for("1024/25");
  cluster_->annotate("team/pod-1", kCoreAnnotation, "10");
  wait_for("1024/10");
  start();
  EXPECT_TRUE(scheduler_->limits_of(test_uid(900001)).starts_with("1024/10")) << "no restart raises a limit";
  cluster_->cut_watches();
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "");
  cluster_->annotate("team/pod-1", kCoreAnnotation, "");
  wait_for(granted);
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "much");
  while (cluster_->events().empty()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(cluster_->events()[0]["reason"], "BadLimit");
}

// The kubelet prepares a claim once, whoever comes to it later.
TEST_F(DraNodeTest, PodsThatShareAClaimAreOneTenant) {
  start();
  SliceAllocator allocator;
  cluster_->put_claim(allocator.allocate(1, {{4096 * kMib, 25}}, cluster_->slices()));
  ASSERT_EQ(prepare(1), "");
  EXPECT_EQ(scheduler_->tenant_of(test_uid(900001)), test_uid(900001));
  cluster_->put_pod(test_pod(2, {"claim-1"}, "Pending"));
  while (scheduler_->tenant_of(test_uid(900002)) != test_uid(900001)) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(scheduler_->limits_of(test_uid(900002)), scheduler_->limits_of(test_uid(900001)));
  cluster_->delete_pod("team/pod-2");
  while (!scheduler_->tenant_of(test_uid(900002)).empty()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(unprepare(1), "");
  EXPECT_EQ(scheduler_->tenant_of(test_uid(900001)), "");
}

TEST_F(DraNodeTest, TheKubeletWatchesTheHealthOfEachGpu) {
  start();
  const std::string first = std::string(kTestNode) + "/" + device_name(test_gpu(0));
  for (const char* version : {"v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"}) {
    TestDraKubelet::Health all;
    const auto well = kubelet_->watch(version, [&](const TestDraKubelet::Health& health) {
      all = health;
      return true;
    });
    ASSERT_TRUE(well) << well.error().text;
    EXPECT_EQ(all.size(), static_cast<size_t>(kGpus));
    EXPECT_EQ(all[first], "healthy");
    std::thread falls_ill([&] { node_->set_health({test_gpu(0)}, false, "XID 79"); });
    EXPECT_TRUE(kubelet_->watch(version, [&](const TestDraKubelet::Health& health) { return health.at(first) == "unhealthy: XID 79"; }));
    falls_ill.join();
    std::thread ends([&] {
      node_->set_health({test_gpu(0)}, true, "");
      node_.reset();
    });
    EXPECT_FALSE(kubelet_->watch(version, [&](const TestDraKubelet::Health&) { return false; })) << "the driver's end ends it";
    ends.join();
    start();
  }
}

TEST_F(DraNodeTest, EachCallThatFailsOnceCostsOneTry) {
  cluster_->refuse("GET", "/resourceslices", 500);
  cluster_->refuse("GET", "/nodes/", 500);
  cluster_->refuse("POST", "/resourceslices", 500);
  start();
  SliceAllocator allocator;
  cluster_->put_claim(allocator.allocate(1, {{4096 * kMib, 25}}, cluster_->slices()));
  cluster_->refuse("GET", "/resourceclaims/", 503);
  EXPECT_NE(prepare(1).find("answers 503"), std::string::npos);
  fs::create_directories(settings_.install_dir + "/dra-claims.jsonl/in-the-way");
  EXPECT_NE(prepare(1), "");
  fs::remove_all(settings_.install_dir + "/dra-claims.jsonl");
  scheduler_.reset();
  EXPECT_NE(prepare(1).find("the scheduler did not take the limits"), std::string::npos);
  scheduler_ = std::make_unique<ListeningScheduler>(settings_.runtime_dir);
  EXPECT_EQ(node_->prepared(), 0U);
  cluster_->refuse("PATCH", "/status", 500);
  EXPECT_EQ(prepare(1), "");
  check_limits(allocator);
  fs::rename(settings_.install_dir + "/dra-claims.jsonl", folder_ + "/saved");
  fs::create_directories(settings_.install_dir + "/dra-claims.jsonl/in-the-way");
  EXPECT_NE(unprepare(1), "");
  check_limits(allocator);
  fs::remove_all(settings_.install_dir + "/dra-claims.jsonl");
  scheduler_.reset();
  EXPECT_EQ(unprepare(1), "") << "a pod that ends does not wait for the scheduler";
  scheduler_ = std::make_unique<ListeningScheduler>(settings_.runtime_dir);
  EXPECT_EQ(node_->prepared(), 0U);
}

// NVSHARE_TEST_SCALE above 1: a hundred restarts of kubelet and driver at least, in place of five.
TEST_F(DraNodeTest, TwoHundredClaimsOverRestartsOfAllSides) {
  const char* scale = std::getenv("NVSHARE_TEST_SCALE");
  const bool is_long = scale != nullptr && std::atof(scale) > 1;
  const int often = is_long ? 33 : 3;  // of restarts, beside 94 other steps
  std::mt19937 random(36);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  SliceAllocator allocator;
  start();
  int restarts = 0, kubelets = 0;
  for (int next = 1; next <= 200 || !allocator.claims().empty();) {
    const int what = below(94 + 2 * often);
    if (what < 48 && next <= 200) {
      std::vector<SliceAllocator::Wish> wishes(static_cast<size_t>(1 + below(2)));
      for (auto& wish : wishes) wish = {(1 + below(6000)) * kMib, 1 + below(30)};
      const Json claim = allocator.allocate(next, wishes, cluster_->slices());
      if (claim.is_null()) continue;
      cluster_->put_claim(claim);
      ASSERT_EQ(prepare(next), "") << "claim " << next;
      ++next;
    } else if (what < 90 && !allocator.claims().empty()) {
      const int number = std::next(allocator.claims().begin(), below(static_cast<int>(allocator.claims().size())))->first;
      cluster_->delete_claim("team", "claim-" + std::to_string(number));  // gone before, as it may be
      ASSERT_EQ(unprepare(number), "");
      allocator.release(number);
    } else if (what < 90 + often) {
      ++kubelets;
      cluster_->delete_slices();  // a kubelet that starts; and prepares again what its pods have
      ASSERT_TRUE(kubelet_->find_driver());
      for (const auto& [number, given] : allocator.claims()) {
        const auto before = answers_.at(number);
        ASSERT_EQ(prepare(number), "");
        ASSERT_EQ(answers_.at(number), before) << "claim " << number;
      }
      wait_for_slices();
    } else if (what < 90 + 2 * often) {
      start();
      ++restarts;
    } else if (what < 92 + 2 * often) {
      cluster_->cut_watches();
    }
    ASSERT_NO_FATAL_FAILURE(check_limits(allocator));
  }
  EXPECT_GE(restarts, is_long ? 100 : 5);
  EXPECT_GE(kubelets, is_long ? 100 : 5);
  EXPECT_TRUE(fs::is_empty(settings_.cdi_dir));
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
