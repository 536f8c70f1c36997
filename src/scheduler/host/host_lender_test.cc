#include "scheduler/host/host_lender.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "base/fd.h"
#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

using protocol::ArenaOwner;

constexpr policy::ClientId kClient = 1;
constexpr uint64_t kStarted = 77;  // start time of every process

class LentHostMemory : public testing::Test, private HostBorrowers {
 protected:
  void SetUp() override {
    living_ = {100};
    lender_.update(settings_, 0, true, now_);
    lender_.join(borrower(), false);
  }

  static HostLender::Borrower borrower() { return {kClient, 5, 100, kStarted, 2, 10 * kGiB}; }
  void ask(int64_t total, ArenaOwner owner) {
    lender_.request(kClient, {++requests_, static_cast<uint64_t>(total), static_cast<uint8_t>(owner), 1, {}}, HostArena::kAuto);
    lender_.update(settings_, 0, true, now_);
  }

  // HostBorrowers.
  bool is_there(policy::ClientId client) const override { return client == kClient; }
  bool is_alive(pid_t pid, uint64_t start_time) const override { return start_time == kStarted && living_.contains(pid); }
  void lend(policy::ClientId, const protocol::ArenaSegment& segment, Descriptors) override { lent_.push_back(segment); }
  void refuse(policy::ClientId, const protocol::ArenaRefused& message, bool urgent, HostBudget::Bound, policy::Instant) override {
    EXPECT_TRUE(urgent);
    missing_ += static_cast<int64_t>(message.missing);
  }
  void ask_back(policy::ClientId, const protocol::ArenaShrink&) override {}
  void host_room_changed(const policy::HostMemory& room, policy::Instant) override { rooms_.push_back(room); }

  Settings settings_;
  policy::Instant now_ = kSecond;
  std::set<pid_t> living_;
  std::vector<protocol::ArenaSegment> lent_;
  std::vector<policy::HostMemory> rooms_;
  int64_t missing_ = 0;
  uint64_t requests_ = 0;
  SegmentId last_id_ = 0;
  HostLender lender_{{[] {
                        return HostBudget::Machine{100 * kGiB, std::nullopt};
                      },
                      [](pid_t) { return std::pair<int64_t, int64_t>(0, 0); }, [this] { return ++last_id_; }, nullptr},
                     *this};
};

TEST_F(LentHostMemory, AProcessOwnMemoryIsLentAsAPermission) {
  ask(64 * kMiB, ArenaOwner::kProcess);
  ASSERT_EQ(lent_.size(), 1u);
  EXPECT_EQ(lent_[0].bytes, static_cast<uint64_t>(64 * kMiB));
  EXPECT_EQ(missing_, 0);
}

TEST_F(LentHostMemory, WithoutAMakerTheSchedulersOwnIsRefused) {
  ask(64 * kMiB, ArenaOwner::kScheduler);
  EXPECT_TRUE(lent_.empty());
  EXPECT_EQ(missing_, 64 * kMiB);
}

TEST_F(LentHostMemory, ThePolicyHearsOfTheRoomWhenItHasChanged) {
  ASSERT_EQ(rooms_.size(), 1u);
  lender_.update(settings_, 0, true, now_);
  ASSERT_EQ(rooms_.size(), 2u) << "beside a client, part of it is for others";
  EXPECT_LT(rooms_[1].share, rooms_[0].share);
  EXPECT_EQ(rooms_[1].available, rooms_[0].available);
  lender_.update(settings_, 0, true, now_);
  EXPECT_EQ(rooms_.size(), 2u);
}

// What the policy takes for room until it was told, as memory moved that lies in no segment.
TEST_F(LentHostMemory, ThePolicyHearsOfItAgainWhenMemoryHasMoved) {
  lender_.update(settings_, 0, true, now_);
  ASSERT_EQ(rooms_.size(), 2u);
  lender_.note_moved(5, 32 * kMiB);
  lender_.update(settings_, 0, false, now_);
  EXPECT_EQ(rooms_.size(), 2u) << "too little";
  lender_.note_moved(5, 32 * kMiB);
  lender_.update(settings_, 0, false, now_);
  ASSERT_EQ(rooms_.size(), 3u);
  EXPECT_EQ(rooms_[2].available, rooms_[1].available);
  lender_.update(settings_, 0, false, now_);
  EXPECT_EQ(rooms_.size(), 3u);
}

// Thousands that swap are told of with what they move.
TEST_F(LentHostMemory, ThePolicyIsNotToldOnceMoreWhatItReckonsWith) {
  ask(8 * kGiB, ArenaOwner::kProcess);
  lender_.report(kClient, 8 * kGiB, 0);
  lender_.update(settings_, 0, true, now_ += kSecond);
  const size_t told = rooms_.size();
  for (int64_t moved = 256 * kMiB; moved <= 8 * kGiB; moved += 256 * kMiB) {
    EXPECT_EQ(lender_.report(kClient, 8 * kGiB, moved), 256 * kMiB);
    lender_.note_reckoned(5, 256 * kMiB);
    lender_.update(settings_, 0, false, now_ += kSecond);
  }
  EXPECT_EQ(rooms_.size(), told);
  lender_.report(kClient, 8 * kGiB, 4 * kGiB);
  lender_.update(settings_, 0, false, now_);
  EXPECT_EQ(rooms_.size(), told + 1) << "what it does not know of";
}

TEST_F(LentHostMemory, MoreRoomIsToldAfterAMoment) {
  ask(8 * kGiB, ArenaOwner::kProcess);
  lender_.report(kClient, 8 * kGiB, 8 * kGiB);
  lender_.update(settings_, 0, true, now_);
  const size_t told = rooms_.size();
  lender_.report(kClient, 8 * kGiB, 0);
  lender_.update(settings_, 0, true, now_ += 1);
  EXPECT_EQ(rooms_.size(), told);
  ASSERT_TRUE(lender_.next_deadline());
  EXPECT_LE(*lender_.next_deadline(), now_ + HostRoomWatch::kMoreAfter);
  now_ = *lender_.next_deadline();
  lender_.deadline_reached(now_);
  ASSERT_EQ(rooms_.size(), told + 1);
  EXPECT_EQ(rooms_.back().available, rooms_[told - 1].available + 8 * kGiB);
  EXPECT_FALSE(lender_.next_deadline());
}

TEST_F(LentHostMemory, WhatAClientLeavesCountsOnItsGpuWhileItsProcessLives) {
  ask(64 * kMiB, ArenaOwner::kProcess);
  lender_.leave(borrower());
  lender_.update(settings_, 0, true, now_);
  EXPECT_EQ(lender_.gpus_of_holders(), std::set<policy::GpuId>{2});
  living_.clear();
  for (int looks = 0; looks < 10; ++looks) {
    now_ = lender_.next_deadline().value_or(now_);
    lender_.deadline_reached(now_);
  }
  EXPECT_TRUE(lender_.gpus_of_holders().empty());
}

// What costs nothing is none: a mapping as such. And it is not asked for, as to read a process's mappings takes a lock of that process's.
TEST(HostMemoryByProc, OfLentMemoryThePagesCount) {
  constexpr int64_t kBytes = 256 * kMiB;
  const FileDescriptor file(memfd_create("nvshare-arena", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  const int64_t before = host_memory_by_proc(getpid()).second;
  void* const data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  EXPECT_LT(host_memory_by_proc(getpid()).second, before + kBytes / 2);
  ASSERT_EQ(madvise(data, kBytes, MADV_POPULATE_WRITE), 0);
  EXPECT_GE(host_memory_by_proc(getpid()).second, before + kBytes);
  munmap(data, kBytes);
}

}  // namespace
}  // namespace nvshare::scheduler
