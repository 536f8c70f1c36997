#include "scheduler/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

std::string take_all(int fd) {
  std::string all;
  char part[4096];
  fcntl(fd, F_SETFL, O_NONBLOCK);
  for (ssize_t got = 0; (got = read(fd, part, sizeof part)) > 0;) all.append(part, static_cast<size_t>(got));
  return all;
}

class SinkTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(GetParam() ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
    logger_ = std::make_shared<spdlog::logger>("test", std::make_shared<UnwaitingSink>(writer_.get()));
    logger_->set_level(spdlog::level::debug);
  }
  FileDescriptor reader_, writer_;
  std::shared_ptr<spdlog::logger> logger_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, SinkTest, testing::Bool());

// It stood in write() for ever.
TEST_P(SinkTest, ALogThatNobodyReadsHoldsUpNobodyAndSaysLaterWhatWasLost) {
  const std::string text(1000, 'x');
  for (int i = 0; i < 2000; ++i) logger_->debug("{} {}", i, text);  // more than any pipe or socket holds
  std::string read = take_all(reader_.get());
  EXPECT_NE(read.find(" 0 x"), std::string::npos);
  EXPECT_EQ(read.find(" 1999 x"), std::string::npos);
  EXPECT_EQ(read.back(), '\n') << "no line is cut";
  const auto whole = std::count(read.begin(), read.end(), '\n');
  logger_->info("afterwards");
  read = take_all(reader_.get());
  EXPECT_NE(read.find(std::to_string(2000 - whole) + " lines were dropped"), std::string::npos) << read;
  EXPECT_NE(read.find("afterwards\n"), std::string::npos) << read;
}

TEST_P(SinkTest, LinesThatComeTooFastAreCounted) {
  for (int i = 0; i < 3000; ++i) {
    logger_->warn("{}", i);
    if (i % 100 == 0) take_all(reader_.get());
  }
  take_all(reader_.get());
  usleep(50'000);
  logger_->warn("afterwards");
  EXPECT_NE(take_all(reader_.get()).find(" lines were dropped"), std::string::npos);
}

TEST_P(SinkTest, ALongLineIsCut) {
  logger_->info(std::string(10'000, 'x'));
  const std::string read = take_all(reader_.get());
  EXPECT_EQ(read.size(), UnwaitingSink::kLineBytesMax);
  EXPECT_EQ(read.back(), '\n');
}

TEST(TenantLinesTest, ATenantThatStartsManyHasAFewLinesAndNobodyElseLosesIts) {
  TenantLines lines;
  std::string more;
  int written = 0;
  for (int i = 0; i < 100'000; ++i) written += lines.allows("1", kSecondNs, &more) ? 1 : 0;
  EXPECT_EQ(written, 20);
  EXPECT_TRUE(lines.allows("2", kSecondNs, &more));
  EXPECT_EQ(more, "");
  EXPECT_TRUE(lines.allows("1", 10 * kSecondNs, &more));
  EXPECT_NE(more.find("99980 such lines of this tenant or user"), std::string::npos) << more;
  written = 0;
  for (int tenant = 3; tenant < 5000; ++tenant) written += lines.allows(std::to_string(tenant), 11 * kSecondNs, &more) ? 1 : 0;
  EXPECT_LE(written, 200) << "nor do many tenants";
}

}  // namespace
}  // namespace nvshare::scheduler
