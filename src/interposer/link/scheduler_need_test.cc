#include "interposer/link/scheduler_need.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

struct Read {
  SchedulerNeed need = SchedulerNeed::kNone;
  bool good = false;
};

Read read(const char* text) {
  Read result;
  result.good = read_client_conf(text, &result.need);
  return result;
}

TEST(SchedulerNeed, TheFileOfTheAdministratorSaysIt) {
  EXPECT_EQ(read("require_scheduler = wait\n").need, SchedulerNeed::kWaits);
  EXPECT_EQ(read("# for all programs\n\n  require_scheduler=1").need, SchedulerNeed::kRefuses);
  EXPECT_EQ(read("require_scheduler = \"wait\"  # quoted\r\n").need, SchedulerNeed::kWaits);
  EXPECT_EQ(read("require_scheduler = 0\n").need, SchedulerNeed::kNone);
  EXPECT_EQ(read("").need, SchedulerNeed::kNone);
  for (const char* good : {"", "\n\n", "# nothing", "require_scheduler = 0", "require_scheduler = wait"})
    EXPECT_TRUE(read(good).good) << good;
}

TEST(SchedulerNeed, WhatIsNotUnderstoodIsSaidAndTakesNothingBack) {
  EXPECT_FALSE(read("require_scheduler = maybe\n").good);
  EXPECT_EQ(read("require_scheduler = maybe\n").need, SchedulerNeed::kWaits) << "rather too strict than too lax";
  EXPECT_FALSE(read("require_scheduler\n").good);
  EXPECT_FALSE(read("other = 1\nrequire_scheduler = wait\n").good);
  EXPECT_EQ(read("other = 1\nrequire_scheduler = wait\n").need, SchedulerNeed::kWaits);
  EXPECT_FALSE(read("=\n").good);
}

}  // namespace
}  // namespace nvshare::interposer
