// Preparing and unpreparing claims beside a scheduler that listens: what is in force when the answer is given, and what is left when a
// step fails or the driver ends.
#include "kubernetes/dra/claim_driver.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "kubernetes/dra/claim_cdi.h"
#include "kubernetes/dra/claim_record.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/files.h"
#include "kubernetes/pods/test_listening_scheduler.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace fs = std::filesystem;

std::string pod_uid(int number) { return test_uid(900000 + number); }

class DraDriverTest : public testing::Test {
 protected:
  DraDriverTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-dra-driver-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    options_.pool = kTestNode;
    options_.devices = test_devices(2);
    options_.state_dir = folder_ + "/state";
    options_.cdi_dir = folder_ + "/cdi";
    options_.runtime_dir = folder_ + "/run";
    options_.mounts = {{"/in/lib.so", "/host/lib.so"}};
    spdlog::set_level(spdlog::level::off);
    start_scheduler();
  }
  ~DraDriverTest() override {
    driver_.reset();
    scheduler_.reset();
    fs::remove_all(folder_);
  }

  void start_scheduler() {
    scheduler_.reset();
    scheduler_ = std::make_unique<ListeningScheduler>(options_.runtime_dir);
  }
  void stop_scheduler() {
    scheduler_.reset();
    fs::remove_all(options_.runtime_dir);
  }
  Result<void> start_driver() {
    driver_.reset();
    auto driver = ClaimDriver::open(loop_, options_, [this](const ClaimName& name) -> Result<std::string> {
      ++fetches_;
      const auto found = objects_.find(name.uid);
      if (found == objects_.end()) return error_format("404");
      return found->second.dump();
    });
    if (!driver) return driver.error();
    driver_ = std::move(*driver);
    return {};
  }
  void add(int number, const std::vector<TestPart>& parts) { objects_[test_uid(number)] = test_claim(number, parts); }
  std::string prepare(int number) {
    const auto prepared = driver_->prepare(test_claim_name(number));
    return prepared ? "" : prepared.error().text;
  }
  bool has_spec(int number) const { return fs::exists(cdi_file_of(options_.cdi_dir, test_uid(number))); }
  // Waits, without a limit of its own, until the scheduler has it: the test's timeout ends what never comes.
  void wait_for_limits(int pod, const std::string& limits) {
    while (scheduler_->limits_of(pod_uid(pod)) != limits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::string folder_;
  DriverOptions options_;
  std::map<std::string, Json> objects_;
  std::atomic<int> fetches_{0};
  std::unique_ptr<ListeningScheduler> scheduler_;
  LoopThread loop_;
  std::unique_ptr<ClaimDriver> driver_;
};

const std::string kFourGib = " " + test_gpu(0) + " 4096";

TEST_F(DraDriverTest, LimitsAndSpecificationAreThereWhenAClaimIsPrepared) {
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25", "main"}, {1, "2Gi", "50", "other/small"}});
  const auto prepared = driver_->prepare(test_claim_name(1));
  ASSERT_TRUE(prepared) << prepared.error().text;
  EXPECT_EQ(scheduler_->limits_of(pod_uid(1)), "4096/25" + kFourGib + " " + test_gpu(1) + " 2048");
  EXPECT_EQ(scheduler_->name_of(pod_uid(1)), "team/pod-1");
  EXPECT_FALSE(scheduler_->has_complete_list()) << "others may speak for pods of this node";
  ASSERT_EQ(prepared->size(), 2U);
  EXPECT_EQ((*prepared)[1].request, "other");
  EXPECT_EQ((*prepared)[1].pool, kTestNode);
  EXPECT_EQ((*prepared)[1].device, device_name(test_gpu(1)));
  const auto spec = read_file(cdi_file_of(options_.cdi_dir, test_uid(1)));
  ASSERT_TRUE(spec);
  for (const PreparedDevice& device : *prepared) {
    EXPECT_NE(spec->find("\"" + device.cdi_ids[0].substr(device.cdi_ids[0].find('=') + 1) + "\""), std::string::npos);
  }
}

TEST_F(DraDriverTest, TheAnswerIsTheSameAgainAlsoAfterARestartAndWithoutTheApiServer) {
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25"}});
  const auto first = driver_->prepare(test_claim_name(1));
  ASSERT_TRUE(first);
  objects_.clear();
  for (int restart = 0; restart < 2; ++restart) {
    const auto again = driver_->prepare(test_claim_name(1));
    ASSERT_TRUE(again) << again.error().text;
    EXPECT_EQ(*again, *first);
    ASSERT_TRUE(start_driver());
    EXPECT_EQ(driver_->prepared(), 1U);
  }
  EXPECT_EQ(fetches_, 1);
}

TEST_F(DraDriverTest, AStepThatFailsLeavesNothingBehindAndTheNextTryMayDo) {
  ASSERT_TRUE(start_driver());
  const auto nothing_is_left = [&](const char* why) {
    EXPECT_EQ(driver_->prepared(), 0U) << why;
    EXPECT_FALSE(has_spec(1)) << why;
    EXPECT_EQ(scheduler_ ? scheduler_->limits_of(pod_uid(1)) : "", "") << why;
  };
  EXPECT_NE(prepare(1).find("claim team/claim-1: 404"), std::string::npos);
  nothing_is_left("no such claim");
  add(1, {{0, "99Gi", "25"}});
  EXPECT_NE(prepare(1).find("accepted: 1Mi to 16Gi"), std::string::npos);
  nothing_is_left("too much");
  add(1, {{0, "4Gi", "25"}});
  fs::create_directories(options_.state_dir + "/dra-claims.jsonl/in-the-way");
  EXPECT_NE(prepare(1), "");
  nothing_is_left("no record");
  fs::remove_all(options_.state_dir + "/dra-claims.jsonl");
  ASSERT_TRUE(write_file_atomically(options_.cdi_dir, "a file where the folder is to be"));
  EXPECT_NE(prepare(1), "");
  nothing_is_left("no specification");
  fs::remove(options_.cdi_dir);
  stop_scheduler();
  EXPECT_NE(prepare(1).find("the scheduler did not take the limits"), std::string::npos);
  nothing_is_left("no scheduler");
  start_scheduler();
  EXPECT_EQ(prepare(1), "");
  EXPECT_TRUE(has_spec(1));
  EXPECT_EQ(scheduler_->limits_of(pod_uid(1)), "4096/25" + kFourGib);
}

// The claim is in the record when the disk fills and the scheduler goes, so that it can be neither kept nor undone. The kubelet gives the
// pod up and is not to take it for unprepared as long as the next driver would take it over.
TEST_F(DraDriverTest, WhatCouldNotBeUndoneIsUnpreparedOnceTheRecordSaysSo) {
  stop_scheduler();
  const std::string socket_path = options_.runtime_dir + protocol::kAdminSocket;
  fs::create_directories(fs::path(socket_path).parent_path());
  const FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path.c_str());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  std::jthread scheduler_that_goes([&] {
    while (true) {
      const FileDescriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      const auto record = read_file(options_.state_dir + "/dra-claims.jsonl");
      if (!record || record->find(test_uid(1)) == std::string::npos) continue;
      fs::rename(options_.state_dir, options_.state_dir + ".away");
      ASSERT_TRUE(write_file_atomically(options_.state_dir, "no folder: nothing can be written"));
    }
  });
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25"}});
  EXPECT_NE(prepare(1), "");
  ASSERT_TRUE(fs::exists(options_.state_dir + ".away"));
  EXPECT_FALSE(driver_->unprepare(test_uid(1)));
  EXPECT_TRUE(driver_->unprepare(test_uid(2))) << "never known";
  fs::remove(options_.state_dir);
  fs::rename(options_.state_dir + ".away", options_.state_dir);
  EXPECT_TRUE(driver_->unprepare(test_uid(1)));
  shutdown(listener.get(), SHUT_RDWR);
  ASSERT_TRUE(start_driver());
  EXPECT_EQ(driver_->prepared(), 0U);
}

TEST_F(DraDriverTest, UnpreparingNeedsNeitherTheClaimNorTheScheduler) {
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25"}});
  add(2, {{0, "4Gi", "25"}});
  ASSERT_EQ(prepare(1) + prepare(2), "");
  EXPECT_TRUE(driver_->unprepare(test_uid(77))) << "unknown";
  EXPECT_TRUE(driver_->unprepare("../../etc/passwd")) << "unknown";
  objects_.clear();
  EXPECT_TRUE(driver_->unprepare(test_uid(2)));
  EXPECT_EQ(scheduler_->limits_of(pod_uid(2)), "");
  stop_scheduler();
  EXPECT_TRUE(driver_->unprepare(test_uid(1)));
  EXPECT_TRUE(driver_->unprepare(test_uid(1))) << "again";
  EXPECT_FALSE(has_spec(1) || has_spec(2));
  ASSERT_TRUE(start_driver());
  EXPECT_EQ(driver_->prepared(), 0U);
}

TEST_F(DraDriverTest, ASchedulerThatIsBackIsToldEverything) {
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25"}});
  add(2, {{0, "4Gi", "30"}});
  ASSERT_EQ(prepare(1) + prepare(2), "");
  start_scheduler();
  wait_for_limits(1, "4096/25" + kFourGib);
  wait_for_limits(2, "4096/30" + kFourGib);
  driver_.reset();
  start_scheduler();
  ASSERT_TRUE(start_driver());
  wait_for_limits(1, "4096/25" + kFourGib);
}

TEST_F(DraDriverTest, APodHasWhatIsLeftWhenOneOfItsClaimsEnds) {
  ASSERT_TRUE(start_driver());
  add(1, {{0, "4Gi", "25"}});
  add(2, {{0, "2Gi", "10"}});
  objects_[test_uid(2)]["status"]["reservedFor"] = objects_[test_uid(1)]["status"]["reservedFor"];
  ASSERT_EQ(prepare(1) + prepare(2), "");
  EXPECT_EQ(scheduler_->limits_of(pod_uid(1)), "6144/35 " + test_gpu(0) + " 6144");
  ASSERT_TRUE(driver_->unprepare(test_uid(2)));
  EXPECT_EQ(scheduler_->limits_of(pod_uid(1)), "4096/25" + kFourGib);
}

TEST_F(DraDriverTest, NoDriverStartsOverALaterRecord) {
  ASSERT_TRUE(start_driver());
  driver_.reset();
  ASSERT_TRUE(write_file_atomically(options_.state_dir + "/dra-claims.jsonl", "{\"nvshare_dra_claims\":2}\n"));
  const auto later = start_driver();
  ASSERT_FALSE(later);
  EXPECT_NE(std::string(later.error().text).find("version 2"), std::string::npos);
}

// The kubelet calls the one that registered last; when that ends, the other one again.
TEST_F(DraDriverTest, TwoDriversOfAnUpdateShareTheRecord) {
  ASSERT_TRUE(start_driver());
  const auto old_driver = std::move(driver_);
  ASSERT_TRUE(start_driver());
  const auto prepare_with = [&](ClaimDriver& driver, int number) {
    const auto prepared = driver.prepare(test_claim_name(number));
    return prepared ? std::string() : std::string(prepared.error().text);
  };
  for (int number = 1; number <= 3; ++number) add(number, {{0, "8Gi", "25"}});
  EXPECT_EQ(prepare_with(*old_driver, 1), "");
  EXPECT_EQ(prepare_with(*driver_, 2), "");
  EXPECT_NE(prepare_with(*old_driver, 3).find("16Gi"), std::string::npos) << "it counts what the other one gave";
  EXPECT_NE(prepare_with(*driver_, 3), "");
  EXPECT_EQ(old_driver->prepared(), 2U);
  // One that was prepared by the other one, whose claim has another allocation by now.
  ASSERT_TRUE(driver_->unprepare(test_uid(1)));
  EXPECT_FALSE(has_spec(1));
  add(1, {{1, "2Gi", "10"}});
  const auto anew = old_driver->prepare(test_claim_name(1));
  ASSERT_TRUE(anew) << anew.error().text;
  EXPECT_EQ(anew->at(0).device, device_name(test_gpu(1)));
  EXPECT_TRUE(has_spec(1));
  ASSERT_TRUE(old_driver->unprepare(test_uid(2)));
  EXPECT_EQ(prepare_with(*driver_, 3), "");
  EXPECT_EQ(driver_->prepared(), 2U);
  EXPECT_TRUE(has_spec(1) && has_spec(3) && !has_spec(2));
}

TEST_F(DraDriverTest, TwoDriversAtOnceNeverGiveMoreThanAGpuHas) {
  ASSERT_TRUE(start_driver());
  const auto other = std::move(driver_);
  ASSERT_TRUE(start_driver());
  for (int number = 1; number <= 16; ++number) add(number, {{0, "2Gi", "1"}});
  std::vector<std::thread> threads;
  std::atomic<int> given{0};
  for (int number = 1; number <= 16; ++number) {
    ClaimDriver& driver = number % 2 == 0 ? *other : *driver_;
    threads.emplace_back([&, number] { given += driver.prepare(test_claim_name(number)) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(given, 8);
  driver_.reset();
  ASSERT_TRUE(start_driver());
  EXPECT_EQ(driver_->prepared(), 8U);
}

TEST_F(DraDriverTest, ADamagedEntryCostsOneClaimAndItsSpecification) {
  ASSERT_TRUE(start_driver());
  for (int number = 1; number <= 3; ++number) {
    add(number, {{0, "4Gi", "25"}});
    ASSERT_EQ(prepare(number), "");
  }
  driver_.reset();
  const std::string path = options_.state_dir + "/dra-claims.jsonl";
  auto text = read_file(path);
  ASSERT_TRUE(text);
  text->at(text->find("claim-2") + 6) = '9';
  ASSERT_TRUE(write_file_atomically(path, *text));
  ASSERT_TRUE(start_driver());
  EXPECT_EQ(driver_->prepared(), 2U);
  EXPECT_TRUE(has_spec(1) && has_spec(3));
  EXPECT_FALSE(has_spec(2));
  EXPECT_TRUE(fs::exists(path + ".damaged"));
  EXPECT_EQ(prepare(2), "");
  EXPECT_TRUE(has_spec(2));
}

TEST_F(DraDriverTest, ClaimsThatComeTogetherNeverGetMoreThanAGpuHas) {
  ASSERT_TRUE(start_driver());
  for (int number = 1; number <= 16; ++number) add(number, {{0, "2Gi", "1"}});
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int number = 1; number <= 16; ++number) {
    threads.emplace_back([this, number, &refused] { refused += driver_->prepare(test_claim_name(number)) ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 8);
  EXPECT_EQ(driver_->prepared(), 8U);
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
