// A real Slurm's signals are in test/slurm.
#include "slurm/step_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "protocol/paths.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

// No scheduler answers there: what was to be told lies in files.
class StepWatchTest : public testing::Test {
 protected:
  StepWatchTest() {
    std::string name = "/tmp/nvs-step-watch-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) folder_ = name;
  }
  ~StepWatchTest() override { std::filesystem::remove_all(folder_); }

  std::vector<admin::JobRequest> told() const {
    std::vector<admin::JobRequest> requests;
    const std::filesystem::path jobs = folder_ + protocol::kJobsFolder;
    if (!std::filesystem::exists(jobs)) return requests;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(jobs)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());  // by their time
    for (const auto& file : files) {
      std::string line;
      std::ifstream stream(file);
      std::getline(stream, line);
      auto request = admin::decode_request(line);
      EXPECT_TRUE(request) << line;
      if (request) requests.push_back(std::get<admin::JobRequest>(*request));
    }
    return requests;
  }

  std::string folder_;
};

TEST_F(StepWatchTest, SigtermTellsThatTheJobEnds) {
  StepWatch(7, folder_, getpid()).take(SIGTERM);
  ASSERT_EQ(told().size(), 1u);
  EXPECT_EQ(told()[0].job, 7u);
  EXPECT_TRUE(told()[0].ends);
  EXPECT_FALSE(told()[0].gone);
  EXPECT_FALSE(told()[0].suspended);
}

TEST_F(StepWatchTest, AStoppedJobIsPausedUntilItGoesOn) {
  StepWatch watch(7, folder_, getpid());
  for (const int signal : {SIGCONT, SIGUSR1, SIGINT, SIGHUP}) watch.take(signal);
  EXPECT_TRUE(told().empty()) << "Slurm sends SIGCONT before SIGTERM, too, and users what they like";
  watch.take(SIGTSTP);
  ASSERT_EQ(told().size(), 1u);
  EXPECT_EQ(told()[0].suspended, true);
  watch.take(SIGCONT);
  watch.take(SIGCONT);
  ASSERT_EQ(told().size(), 2u);
  EXPECT_EQ(told()[1].suspended, false);
}

TEST(StepWatchProcesses, AreToldByStateAndParents) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_TRUE(descends_from(child, getpid()));
  EXPECT_TRUE(descends_from(getpid(), getpid()));
  EXPECT_FALSE(descends_from(getpid(), child));
  EXPECT_FALSE(state_of_process(child)->stopped);
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_TRUE(state_of_process(child)->stopped);
  EXPECT_EQ(state_of_process(child)->parent, getpid());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(state_of_process(child));
}

}  // namespace
}  // namespace nvshare::slurm
