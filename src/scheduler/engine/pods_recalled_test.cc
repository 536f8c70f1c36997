// What is known of pods' limits beside what is told of them: by clients that come back to a new scheduler, by what was written down, of
// pods that are gone.
#include <filesystem>

#include "scheduler/testing/test_pods.h"

namespace nvshare::scheduler {
namespace {

namespace admin = protocol::admin;

// The tenants' file is lost. Two clients of before, one on each GPU, and a new one.
TEST_F(PodsTest, WhatClientsRecallHoldsOnTheirGpu) {
  join(1, kTrain);
  join(2, kTrain, test_registration(kGiB, 2), getpid());
  const std::string low = status_of(engine_->parts(), now_).gpus.at(0).uuid;
  admin::PodRequest pod{kTrain, "team/train", 6 * kGiB, 100, false};
  pod.gpu_memory_on = {{low, 2 * kGiB}};
  set({pod});
  ASSERT_EQ(sink_.limits[1], 2u * kGiB);
  ASSERT_EQ(sink_.limits[2], static_cast<uint64_t>(6 * kGiB));
  join(3, kTrain, test_registration(kGiB), getpid());
  std::map<std::string, uint64_t> ids;  // of this process's, by GPU
  for (const auto& client : status_of(engine_->parts(), now_).clients) {
    if (client.pid == getpid()) ids[client.gpu] = client.id;
  }
  start();
  come_back(11, kTrain, ids[low], 2 * kGiB);
  ids.erase(low);
  come_back(12, kTrain, ids.begin()->second, static_cast<uint64_t>(6 * kGiB), 2);
  EXPECT_EQ(sink_.limits[11], 2u * kGiB);
  EXPECT_EQ(sink_.limits[12], static_cast<uint64_t>(6 * kGiB));
  join(13, kTrain, test_registration(kGiB, 3));
  EXPECT_EQ(sink_.limits[13], static_cast<uint64_t>(6 * kGiB)) << "what holds there is not known";
  join(14, kTrain);
  EXPECT_EQ(sink_.limits[14], 2u * kGiB);
}

TEST_F(PodsTest, WhatClientsRecallIsNothingBesideWhatWasToldSince) {
  join(1, kTrain, test_registration(kGiB), getpid());
  set({{kTrain, "team/train", 4 * kGiB, 100, false}});
  const uint64_t id = status_of(engine_->parts(), now_).clients.at(0).id;
  start();
  set({{kTrain, "team/train", 0, 100, false}}, true);
  come_back(2, kTrain, id, 4 * kGiB);
  EXPECT_EQ(sink_.limits[2], 0u);
}

TEST_F(PodsTest, ALimitThatIsGoneIsNotRecalledForEver) {
  set({{kTrain, "team/train", 4 * kGiB, 30, false}});
  join(1, kTrain, test_registration(kGiB), getpid());
  const uint64_t id = status_of(engine_->parts(), now_).clients.at(0).id;
  start();
  come_back(2, kTrain, id, 4 * kGiB);
  EXPECT_EQ(sink_.limits[2], 4u * kGiB) << "until somebody speaks for the pod";
  set({{kTrain, "team/train", 0, 100, false}}, true);
  EXPECT_EQ(sink_.limits[2], 0u);
}

// What `set` asked for is in the tenants' file; a client that was told it does not make it the pod's besides.
TEST_F(PodsTest, WhatAnAdministratorSetIsRecalledAsNothingElse) {
  keeps_tenants_ = true;
  start();
  join(1, kTrain, test_registration(kGiB), getpid());
  ASSERT_TRUE(engine_->set({{}, kTrain, 8 * kGiB, {}, {}}, ++now_));
  ASSERT_EQ(sink_.limits[1], static_cast<uint64_t>(8 * kGiB));
  const uint64_t id = status_of(engine_->parts(), now_).clients.at(0).id;
  start();
  come_back(2, kTrain, id, static_cast<uint64_t>(8 * kGiB));
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(8 * kGiB));
  ASSERT_TRUE(engine_->set({{}, kTrain, 12 * kGiB, {}, {}}, ++now_));
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(12 * kGiB));
  ASSERT_TRUE(engine_->set({{}, kTrain, 0, {}, {}}, ++now_));
  EXPECT_EQ(sink_.limits[2], 0u);
}

// Clients recalled a limit, and then all pods were named without this one: it is gone, and nobody has said what it is called.
TEST_F(PodsTest, APodThatWasOnlyRecalledKeepsAName) {
  join(1, kTrain, test_registration(kGiB), getpid());
  set({{kTrain, "team/train", 4 * kGiB, 100, false}});
  const uint64_t id = status_of(engine_->parts(), now_).clients.at(0).id;
  start();
  come_back(2, kTrain, id, 4 * kGiB);
  set({}, true);
  join(3, kTrain);
  EXPECT_EQ(sink_.limits[3], static_cast<uint64_t>(4 * kGiB));
  EXPECT_EQ(tenants(), "pod " + std::string(kTrain) + " 4 100; ");
}

// Of pods that are gone the scheduler keeps so many, and first of all those whose programs may come back.
TEST_F(PodsTest, OfPodsThatAreGoneThoseWithProgramsAreKept) {
  set({{kTrain, "team/train", 4 * kGiB, 100, false}});
  join(1, kTrain);
  set({{kTrain, "", 0, 100, true}});
  for (int i = 0; i < 250; ++i) {
    const std::string uid = "0b" + std::to_string(1000 + i);
    set({{uid, "team/job", kGiB, 100, false}});
    set({{uid, "", 0, 100, true}});
  }
  engine_->disconnected(1, "it ended", ++now_);
  join(2, kTrain);
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(4 * kGiB));
}

// The agent heard "ok", and after a restart the pod ran without its limit.
TEST_F(PodsTest, LimitsThatCannotBePersistedAreInForceAndAnError) {
  tenants_file_ = folder_.path() + "/gone/tenants";
  start();
  admin::PodRequest pod;
  pod.uid = kTrain;
  pod.name = "team/train";
  pod.gpu_memory_limit = 2 * kGiB;
  const Result<void> told = engine_->orders().set_pods({{pod}, false}, ++now_);
  ASSERT_FALSE(told);
  EXPECT_NE(std::string(told.error().text).find("in force, but"), std::string::npos) << told.error().text;
  EXPECT_NE(std::string(told.error().text).find("/gone/tenants"), std::string::npos) << told.error().text;
  join(1, kTrain);
  EXPECT_EQ(sink_.limits[1], static_cast<uint64_t>(2 * kGiB));
  std::filesystem::create_directory(folder_.path() + "/gone");
  EXPECT_TRUE(engine_->orders().set_pods({{pod}, false}, ++now_)) << "said again, with room by now";
}

}  // namespace
}  // namespace nvshare::scheduler
