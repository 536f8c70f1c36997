#include "slurm/job_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "protocol/paths.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

class JobLink : public testing::Test {
 protected:
  JobLink() {
    std::string name = "/tmp/nvs-job-link-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) folder_ = name;
    request_.job = 7;
    request_.gone = true;
  }
  ~JobLink() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> waiting() const {
    std::vector<std::string> lines;
    if (!std::filesystem::exists(folder_ + protocol::kJobsFolder)) return lines;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + protocol::kJobsFolder)) {
      std::ifstream stream(entry.path());
      std::getline(stream, lines.emplace_back());
    }
    return lines;
  }

  // A scheduler that answers once.
  std::thread answers(const std::string& line) {
    std::filesystem::create_directory(folder_ + "/admin");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder_ + protocol::kAdminSocket;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener, 4), 0);
    return std::thread([this, listener, line] {
      const int peer = accept(listener, nullptr, nullptr);
      char bytes[1000];
      const ssize_t length = recv(peer, bytes, sizeof bytes, 0);
      asked_.assign(bytes, length > 0 ? static_cast<size_t>(length) : 0);
      EXPECT_EQ(send(peer, line.data(), line.size(), MSG_NOSIGNAL), static_cast<ssize_t>(line.size()));
      close(peer);
      close(listener);
    });
  }

  std::string folder_, asked_;
  admin::JobRequest request_;
};

TEST_F(JobLink, ASchedulerIsTold) {
  std::thread scheduler = answers(admin::encode_tenant(3));
  auto told = tell(folder_, request_);
  scheduler.join();
  ASSERT_TRUE(told) << told.error().text;
  EXPECT_EQ(*told, Told::kNow);
  EXPECT_EQ(asked_, admin::encode(request_));
  EXPECT_TRUE(waiting().empty());
}

TEST_F(JobLink, WithoutOneItWaitsInAFile) {
  auto told = tell(folder_, request_);
  ASSERT_TRUE(told) << told.error().text;
  EXPECT_EQ(*told, Told::kWaits);
  ASSERT_EQ(waiting().size(), 1u);
  EXPECT_EQ(waiting()[0] + "\n", admin::encode(request_));
  struct stat status {};
  ASSERT_EQ(stat((folder_ + protocol::kJobsFolder).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(JobLink, WhatASchedulerRefusesIsAnErrorAndDoesNotWait) {
  std::thread scheduler = answers(admin::encode_error("admin requests are not for containers"));
  auto told = tell(folder_, request_);
  scheduler.join();
  ASSERT_FALSE(told);
  EXPECT_NE(std::string(told.error().text).find("not for containers"), std::string::npos);
  EXPECT_TRUE(waiting().empty());
}

TEST_F(JobLink, AFolderThatOthersCanWriteTakesNothing) {
  chmod(folder_.c_str(), 0777);
  auto told = tell(folder_, request_);
  ASSERT_FALSE(told);
  EXPECT_NE(std::string(told.error().text).find("only user"), std::string::npos) << told.error().text;
}

TEST_F(JobLink, TheUseOfAJobIsASentence) {
  admin::StatusReport report;
  report.tenants.emplace_back();
  report.tenants[0].job = 7;
  report.tenants[0].usage.emplace_back();
  report.tenants[0].usage[0].running_ns = 1'500'000'000;
  report.tenants[0].usage[0].memory_peak = int64_t{3} << 30;
  std::thread scheduler = answers(admin::encode(report));
  const std::string use = use_of_job(folder_, 7);
  scheduler.join();
  EXPECT_EQ(use, "nvshare: gpu_time=1.5s billed=0.0s memory_peak=3072MiB");
  EXPECT_EQ(use_of_job(folder_ + "/none", 7), "");
}

}  // namespace
}  // namespace nvshare::slurm
