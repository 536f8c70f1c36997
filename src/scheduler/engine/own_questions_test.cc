#include "scheduler/engine/own_questions.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "scheduler/bounds.h"

namespace nvshare::scheduler {
namespace {

struct Questions : testing::Test {
  int64_t accepted(const std::string& account, policy::Instant now) {
    int64_t count = 0;
    while (count < 1000 && questions.asked(account, now)) ++count;
    return count;
  }
  Clients clients;
  Tenants tenants;
  OwnQuestions questions{{clients, tenants}};
};

TEST_F(Questions, AnAccountAsksSoOftenInASecond) {
  constexpr policy::Duration kSecond = 1'000'000'000;
  EXPECT_EQ(accepted("pod", kSecond), bounds::kOwnQuestionsPerSecond);
  EXPECT_EQ(accepted("user 1", kSecond + 1), bounds::kOwnQuestionsPerSecond) << "another's questions count by themselves";
  EXPECT_EQ(accepted("pod", 2 * kSecond - 1), 0);
  EXPECT_EQ(accepted("pod", 2 * kSecond), bounds::kOwnQuestionsPerSecond);
}

TEST_F(Questions, ManyAccountsTakeNoMoreThanSoMuchMemory) {
  for (int account = 0; account < 4096; ++account) EXPECT_TRUE(questions.asked(std::to_string(account), 5));
  EXPECT_EQ(accepted("0", 6), bounds::kOwnQuestionsPerSecond) << "the count begins anew";
}

TEST(SealedReport, CannotBeChanged) {
  Result<FileDescriptor> memory = sealed("text");
  ASSERT_TRUE(memory);
  EXPECT_LT(write(memory->get(), "x", 1), 0);
  EXPECT_LT(ftruncate(memory->get(), 0), 0);
  char text[8] = {};
  EXPECT_EQ(pread(memory->get(), text, sizeof text, 0), 4);
  EXPECT_STREQ(text, "text");
}

}  // namespace
}  // namespace nvshare::scheduler
