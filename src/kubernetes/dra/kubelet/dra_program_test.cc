// nvshare-dra-driver as it is installed: its settings, GPUs by NVML (the stand-in's), sockets, signals, and a claim.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kubernetes/dra/cluster/test_cluster.h"
#include "kubernetes/dra/kubelet/test_dra_kubelet.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/files.h"
#include "kubernetes/pods/test_listening_scheduler.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace fs = std::filesystem;

class DraProgramTest : public testing::Test {
 protected:
  DraProgramTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-dra-program-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::signal(SIGPIPE, SIG_IGN);
    fs::create_directories(folder_ + "/install");
    kubelet_ = std::make_unique<TestDraKubelet>(folder_, std::vector<std::string>{"v1.DRAPlugin"});
    scheduler_ = std::make_unique<ListeningScheduler>(folder_ + "/run");
    cluster_ = std::make_unique<TestCluster>(folder_);
  }
  ~DraProgramTest() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    cluster_.reset();
    scheduler_.reset();
    fs::remove_all(folder_);
  }

  void start(std::vector<std::string> arguments = {}) {
    const std::map<std::string, std::string> variables = {{"LD_LIBRARY_PATH", STAND_IN},
                                                          {"SIMGPU_STATE", folder_ + "/gpu"},
                                                          {"SIMGPU_COUNT", "2"},
                                                          {"SIMGPU_MEMORY_MB", "1024"},
                                                          {"SIMGPU_NVLINK_GROUP", "2"},
                                                          {"NVSHARE_NODE_NAME", kTestNode},
                                                          {"NVSHARE_API_SERVER", cluster_->address().url},
                                                          {"NVSHARE_SERVICE_ACCOUNT", folder_},
                                                          {"NVSHARE_PLUGINS_DIR", folder_ + "/plugins"},
                                                          {"NVSHARE_REGISTRY_DIR", folder_ + "/plugins_registry"},
                                                          {"NVSHARE_INSTALL_DIR", folder_ + "/install"},
                                                          {"NVSHARE_LIBRARY", STAND_IN "/libnvidia-ml.so.1"},  // any library will do
                                                          {"NVSHARE_CDI_DIR", folder_ + "/cdi"},
                                                          {"NVSHARE_RUNTIME_DIR", folder_ + "/run"},
                                                          {"NVSHARE_SCHEDULER_PATIENCE", "off"}};
    arguments.insert(arguments.begin(), NVSHARE_DRA_DRIVER_PROGRAM);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    const std::string log = folder_ + "/log";
    pid_ = fork();
    if (pid_ != 0) return;
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    unsetenv("NVIDIA_VISIBLE_DEVICES");
    if (std::freopen(log.c_str(), "w", stderr) == nullptr) _exit(99);
    execv(raw[0], raw.data());
    _exit(98);
  }
  int wait_for_end() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Whether the program still runs. Its log is shown where it does not.
  bool runs() {
    if (waitpid(pid_, nullptr, WNOHANG) == 0) return true;
    pid_ = 0;
    ADD_FAILURE() << *read_file(folder_ + "/log");
    return false;
  }
  // Without a limit of its own: the test's timeout ends what never comes.
  void wait_until_it_serves() {
    while (runs() && (cluster_->slices().size() != 1 || !kubelet_->find_driver()))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  int64_t most_resident_mib() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::strtoll(line.c_str() + 6, nullptr, 10) >> 10;
    }
    return -1;
  }

  std::string folder_;
  std::unique_ptr<ListeningScheduler> scheduler_;
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<TestDraKubelet> kubelet_;
  pid_t pid_ = 0;
  TestCluster::Traffic traffic_;
};

TEST_F(DraProgramTest, ItServesUntilItIsToldToEndAndGoesOnAfterAKill) {
  start();
  wait_until_it_serves();
  ASSERT_FALSE(HasFailure());
  const Json slice = cluster_->slices()[0];
  const Json& devices = slice["spec"]["devices"];
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0]["attributes"]["productName"]["string"], "nvshare stand-in GPU");
  EXPECT_EQ(devices[0]["attributes"]["cudaVersion"]["version"], "13.0.0");
  EXPECT_EQ(devices[0]["attributes"]["nvlinkPeers"]["int"], 1);
  EXPECT_EQ(devices[0]["attributes"]["nvlinkGroup"], devices[1]["attributes"]["nvlinkGroup"]);
  const std::string gpu = devices[0]["attributes"]["uuid"]["string"];
  Json claim = test_claim(1, {{0, "512Mi", "25"}});
  claim["status"]["allocation"]["devices"]["results"][0]["device"] = devices[0]["name"];
  cluster_->put_claim(claim);
  const auto prepared = kubelet_->prepare({test_claim_name(1)});
  ASSERT_TRUE(prepared) << prepared.error().text;
  EXPECT_EQ(prepared->at(test_uid(1)).error, "");
  EXPECT_EQ(scheduler_->limits_of(test_uid(900001)), "512/25 " + gpu + " 512");
  EXPECT_LE(most_resident_mib(), 48);

  kill(pid_, SIGKILL);
  wait_for_end();
  start();
  wait_until_it_serves();
  cluster_->delete_claim("team", "claim-1");
  const auto again = kubelet_->prepare({test_claim_name(1)});
  ASSERT_TRUE(again) << again.error().text;
  EXPECT_EQ(again->at(test_uid(1)), prepared->at(test_uid(1)));

  kill(pid_, SIGTERM);
  EXPECT_EQ(wait_for_end(), 0);
  EXPECT_FALSE(fs::exists(TestDraKubelet::registration_socket(folder_)));
  EXPECT_FALSE(fs::exists(TestDraKubelet::service_socket(folder_)));
}

// As the chart updates it: the new one serves before the old one is told to end.
TEST_F(DraProgramTest, ANewInstanceServesBeforeTheOldOneEnds) {
  const auto socket_of = [&](const std::string& instance) {
    return folder_ + "/plugins_registry/gpu.nvshare.com-" + instance + "-reg.sock";
  };
  const auto start_instance = [&](const std::string& instance) {
    start({"--instance", instance});
    while (runs() && !fs::exists(socket_of(instance))) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    wait_until_it_serves();
  };
  const auto put_claim = [&](int number) {
    Json claim = test_claim(number, {{0, "512Mi", "25"}});
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = cluster_->slices()[0]["spec"]["devices"][0]["name"];
    cluster_->put_claim(claim);
  };
  const auto prepare = [&](int number) {
    const auto entries = kubelet_->prepare({test_claim_name(number)});
    return entries ? entries->at(test_uid(number)).error : std::string(entries.error().text);
  };
  start_instance("old");
  put_claim(1);
  put_claim(2);
  put_claim(3);
  EXPECT_EQ(prepare(1), "");
  const pid_t old_driver = std::exchange(pid_, 0);
  start_instance("new");
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(prepare(2), "");
  EXPECT_NE(prepare(3).find("do not fit"), std::string::npos) << "what the old one gave counts";
  const pid_t new_driver = std::exchange(pid_, old_driver);
  kill(old_driver, SIGTERM);
  EXPECT_EQ(wait_for_end(), 0);
  pid_ = new_driver;
  EXPECT_FALSE(fs::exists(socket_of("old")));
  ASSERT_TRUE(kubelet_->find_driver());
  const auto unprepared = kubelet_->unprepare({test_claim_name(1)});
  ASSERT_TRUE(unprepared) << unprepared.error().text;
  EXPECT_EQ(unprepared->at(test_uid(1)).error, "");
  EXPECT_EQ(prepare(3), "");
  EXPECT_EQ(cluster_->slices().size(), 1U);
  kill(pid_, SIGKILL);
  wait_for_end();
  start_instance("newer");
  EXPECT_FALSE(fs::exists(socket_of("new"))) << "the kubelet would go on calling it";
  EXPECT_EQ(prepare(2), "");
}

// docs/fleet.md has what follows from it for a cluster.
TEST_F(DraProgramTest, TheApiServersLoadGrowsWithClaimsAndPodsOfTheNodeAlone) {
  using Traffic = TestCluster::Traffic;
  start();
  wait_until_it_serves();
  ASSERT_FALSE(HasFailure());
  const auto quiet = [&] {  // nothing comes for a while
    Traffic last = cluster_->traffic();
    for (int same = 0; same < 50; ++same) {
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
      if (cluster_->traffic().requests != last.requests || cluster_->traffic().watch_events != last.watch_events) same = 0;
      last = cluster_->traffic();
    }
    return last;
  };
  const std::string device = text_of(cluster_->slices()[0]["spec"]["devices"][0], "name");
  int number = 0;
  // A claim and its pod come and go, one after the other; of each what that took.
  const auto use = [&](int claims) {
    const Traffic before = quiet();
    for (const int last = number + claims; number < last;) {
      ++number;
      const std::string claim_name = "claim-" + std::to_string(number);
      Json claim = test_claim(number, {{0, "512Mi", "25"}});
      claim["status"]["allocation"]["devices"]["results"][0]["device"] = device;
      cluster_->put_claim(claim);
      cluster_->put_pod(test_pod(number, {claim_name}));
      const auto prepared = kubelet_->prepare({test_claim_name(number)});
      ASSERT_TRUE(prepared && prepared->at(test_uid(number)).error.empty());
      while (cluster_->claim("team", claim_name)["status"]["devices"].is_null()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(kubelet_->unprepare({test_claim_name(number)}));
      cluster_->delete_pod("team/pod-" + std::to_string(number));
      cluster_->delete_claim("team", claim_name);
    }
    // The least that has to come; what comes besides is seen in the quiet afterwards.
    const auto came = [&](const Traffic& now) {
      return now.requests - before.requests >= 2 * claims && now.watch_events - before.watch_events >= 2 * claims;
    };
    while (!came(cluster_->traffic())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Traffic after = quiet();
    traffic_ = {after.requests - before.requests, after.watch_events - before.watch_events, after.received - before.received,
                after.sent - before.sent};
  };
  use(1);  // connections and caches are there
  use(3);
  ASSERT_FALSE(HasFatalFailure());
  const Traffic few = traffic_;
  EXPECT_EQ(few.requests, 3 * 2) << "its GET and the PATCH of its status";
  EXPECT_EQ(few.watch_events, 3 * 2) << "its pod comes and goes";
  use(30);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(traffic_.requests, 10 * few.requests);
  EXPECT_EQ(traffic_.watch_events, 10 * few.watch_events);
  EXPECT_NEAR(static_cast<double>(traffic_.received), 10.0 * static_cast<double>(few.received),
              0.05 * static_cast<double>(traffic_.received));
  EXPECT_NEAR(static_cast<double>(traffic_.sent), 10.0 * static_cast<double>(few.sent), 0.05 * static_cast<double>(traffic_.sent));
  RecordProperty("requests_of_a_claim", few.requests / 3);
  RecordProperty("bytes_to_the_server_of_a_claim", static_cast<int>(traffic_.received / 30));
  RecordProperty("bytes_from_the_server_of_a_claim", static_cast<int>(traffic_.sent / 30));

  // Slices of other nodes are none of its business, however many there are.
  const Traffic before = quiet();
  for (int other = 2; other < 102; ++other) {
    const std::string node = "node-" + std::to_string(other);
    cluster_->add_slice({{"metadata", {{"name", node}}},
                         {"spec", {{"driver", kDriverName}, {"nodeName", node}, {"pool", {{"name", node}}}, {"devices", Json::array()}}}});
  }
  EXPECT_EQ(quiet().requests, before.requests);
  EXPECT_EQ(quiet().sent, before.sent);
}

TEST_F(DraProgramTest, WhatKeepsItFromServingIsSaid) {
  start({"--gpus", "7"});
  EXPECT_EQ(wait_for_end(), 1);
  EXPECT_NE(read_file(folder_ + "/log")->find("'7' is no GPU of this machine"), std::string::npos);
  start({"--health-interval", "never"});
  EXPECT_EQ(wait_for_end(), 2);
  EXPECT_NE(read_file(folder_ + "/log")->find("--health-interval"), std::string::npos);
  start({"--probe", "0.1"});
  EXPECT_EQ(wait_for_end(), 1);
  start();
  wait_until_it_serves();
  const pid_t first = std::exchange(pid_, 0);
  start();  // another with the same sockets
  EXPECT_EQ(wait_for_end(), 1);
  EXPECT_NE(read_file(folder_ + "/log")->find("another driver serves on"), std::string::npos);
  start({"--probe", "20"});
  EXPECT_EQ(wait_for_end(), 0);
  pid_ = first;
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
