// Jobs of Slurm as tenants: told of by an admin request, known by the processes of their steps or by their cgroup.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "scheduler/tenants/tenants.h"
#include "scheduler/tenants/waiting_requests.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

namespace admin = protocol::admin;

// A process below this one, and one below that: a slurmstepd and its task.
class Step {
 public:
  Step() {
    int ends[2];
    if (pipe(ends) != 0) return;
    daemon_ = fork();
    if (daemon_ == 0) {
      const pid_t task = fork();
      if (task == 0) {
        for (;;) pause();
      }
      if (write(ends[1], &task, sizeof task) != sizeof task) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    if (read(ends[0], &task_, sizeof task_) != sizeof task_) task_ = 0;
    close(ends[0]);
  }
  ~Step() { end(); }
  pid_t daemon() const { return daemon_; }
  Peer task() const {
    Peer peer;
    peer.pid = task_;
    peer.start_time = start_time_of(task_);
    return peer;
  }
  void end() {
    if (daemon_ <= 0) return;
    if (task_ > 0) kill(task_, SIGKILL);
    kill(daemon_, SIGKILL);
    waitpid(daemon_, nullptr, 0);
    daemon_ = 0;
  }

 private:
  pid_t daemon_ = 0, task_ = 0;
};

admin::JobRequest step_of(uint32_t job, const Step& step) {
  admin::JobRequest request;
  request.job = job;
  request.pid = step.daemon();
  request.user = "ann";
  request.partition = "gpu";
  request.gpu_memory_limit = 4 * kGiB;
  request.gpu_core_limit = 30;
  request.priority = 5;
  return request;
}

admin::JobRequest gone(uint32_t job) {
  admin::JobRequest request;
  request.job = job;
  request.gone = true;
  return request;
}

const auto kNoCgroup = [](pid_t) { return std::string(); };

TEST(Jobs, AllStepsOfAJobAreOneTenantWithTheLimitsOfTheFirst) {
  Tenants tenants(kNoCgroup);
  Step first, second, other;
  const policy::TenantId job = (*tenants.add_job(step_of(7, first)))->id;
  admin::JobRequest more = step_of(7, second);
  more.gpu_core_limit = 90;
  EXPECT_EQ((*tenants.add_job(more))->id, job);
  EXPECT_NE((*tenants.add_job(step_of(8, other)))->id, job);
  EXPECT_EQ(tenants.join(first.task(), "train").id, job);
  const Tenant& joined = tenants.join(second.task(), "train");
  EXPECT_EQ(joined.id, job);
  EXPECT_EQ(joined.clients, 2u);
  EXPECT_EQ(joined.kind, "job");
  EXPECT_EQ(joined.name, "job 7");
  EXPECT_EQ(joined.core_limit_in_force(), 30);
  EXPECT_EQ(joined.memory_limit_in_force(), 4 * kGiB);
  EXPECT_EQ(joined.priority_in_force(), 5);
  EXPECT_NE(tenants.join(other.task(), "train").id, job);
}

TEST(Jobs, WhatAJobAsksForItselfIsNotReserved) {
  Tenants tenants(kNoCgroup);
  Step step, other;
  EXPECT_EQ((*tenants.add_job(step_of(7, step)))->core_reserved_in_force(), 30) << "granted";
  admin::JobRequest asks = step_of(8, other);
  asks.gpu_core_limit = 100;
  asks.gpu_core_ceiling = 30;
  const Tenant& tenant = **tenants.add_job(asks);
  EXPECT_EQ(tenant.core_limit_in_force(), 30);
  EXPECT_EQ(tenant.core_reserved_in_force(), 0);
}

TEST(Jobs, AJobLivesBetweenItsStepsAndIsForgottenAtItsEnd) {
  Tenants tenants(kNoCgroup);
  policy::TenantId job = 0;
  {
    Step step;
    job = (*tenants.add_job(step_of(7, step)))->id;
    tenants.find("job=7")->core_limit = 60;  // as `set` does
    tenants.join(step.task(), "train");
  }
  tenants.leave(job);
  Step next;
  EXPECT_EQ((*tenants.add_job(step_of(7, next)))->core_limit, 60);
  ASSERT_NE(tenants.find(job), nullptr);
  ASSERT_TRUE(tenants.add_job(gone(7)));
  tenants.prune();
  EXPECT_EQ(tenants.find(job), nullptr);
  EXPECT_EQ(tenants.find("job=7"), nullptr);
  EXPECT_TRUE(tenants.all().empty());
  EXPECT_EQ(*tenants.add_job(gone(7)), nullptr) << "nobody knows it";
}

TEST(Jobs, ARequeuedJobHasTheLimitsOfItsNewRun) {
  Tenants tenants(kNoCgroup);
  Step step;
  const policy::TenantId job = (*tenants.add_job(step_of(7, step)))->id;
  tenants.join(step.task(), "lingers");
  ASSERT_TRUE(tenants.add_job(gone(7)));
  tenants.prune();
  ASSERT_NE(tenants.find(job), nullptr) << "a process of it is still there";
  EXPECT_EQ(tenants.find(job)->core_limit, 30);
  Step again;
  admin::JobRequest request = step_of(7, again);
  request.gpu_core_limit = 50;
  EXPECT_EQ((*tenants.add_job(request))->core_limit, 50);
  tenants.prune();
  EXPECT_NE(tenants.find("job=7"), nullptr);
}

TEST(Jobs, ItsCgroupNamesAJobWhoseProcessesLeftTheStep) {
  std::string cgroup = "6:freezer:/slurm/uid_0/job_7/step_0\n";
  Tenants tenants([&](pid_t) { return cgroup; });
  Step step;
  const policy::TenantId job = (*tenants.add_job(step_of(7, step)))->id;
  Peer self;
  self.pid = getpid();
  self.start_time = start_time_of(getpid());
  EXPECT_EQ(tenants.join(self, "daemonised").id, job);
  EXPECT_EQ(tenants.limited(getpid())->id, job);
  cgroup = "6:freezer:/slurm/uid_0/job_9/step_0\n";
  const Tenant& untold = tenants.join(self, "without the plugin");
  EXPECT_EQ(untold.kind, "job");
  EXPECT_EQ(untold.job->id, 9u);
  const policy::TenantId id = untold.id;
  tenants.leave(id);
  EXPECT_EQ(tenants.find(id), nullptr) << "nobody would tell of its end";
}

TEST(Jobs, APartOfTheGpuBecomesALimitWithTheFirstClient) {
  Tenants tenants(kNoCgroup);
  Step step;
  admin::JobRequest request = step_of(7, step);
  request.gpu_memory_percent = 30;
  request.gpu_memory_limit = 0;
  Tenant& tenant = **tenants.add_job(request);
  settle_memory(tenant, 10 * kGiB);
  EXPECT_EQ(tenant.memory_limit_in_force(), 10 * kGiB / 100 * 30);
  settle_memory(tenant, 5 * kGiB);
  EXPECT_EQ(tenant.memory_limit_in_force(), 10 * kGiB / 100 * 30);
  request.job = 8;
  request.gpu_memory_limit = kGiB;
  Tenant& lower = **tenants.add_job(request);
  EXPECT_EQ(tenants.ask(step.task(), "GPU-a", 10 * kGiB).id, tenant.id);
  settle_memory(lower, 10 * kGiB);
  EXPECT_EQ(lower.memory_limit_in_force(), kGiB) << "the lower one";
}

TEST(Jobs, TheNextSchedulerKnowsThem) {
  TestFolder folder;
  const std::string file = folder.path() + "/tenants";
  Step step;
  policy::TenantId job = 0;
  {
    Tenants tenants(file, kNoCgroup);
    job = (*tenants.add_job(step_of(7, step)))->id;
    tenants.find("job=7")->core_limit = 45;
    tenants.save();
  }
  Tenants tenants(file, kNoCgroup);
  EXPECT_EQ(tenants.problem(), "");
  tenants.prune();
  const Tenant& joined = tenants.join(step.task(), "train");
  EXPECT_EQ(joined.id, job);
  EXPECT_EQ(joined.core_limit, 45);
  EXPECT_EQ(joined.job->user, "ann");
  EXPECT_EQ(joined.job->partition, "gpu");
}

TEST(Jobs, ThoseWhoseEndNobodyTellsAreBounded) {
  Tenants tenants(kNoCgroup);
  for (uint32_t job = 1; job <= Tenants::kIdleJobsMax + 3; ++job) {
    Step step;
    ASSERT_TRUE(tenants.add_job(step_of(job, step)));
  }
  Step living;
  ASSERT_TRUE(tenants.add_job(step_of(100000, living)));
  EXPECT_EQ(tenants.all().size(), Tenants::kIdleJobsMax + 1);
  EXPECT_EQ(tenants.find("job=1"), nullptr);
  EXPECT_NE(tenants.find("job=100000"), nullptr);
}

TEST(Jobs, AStepThatIsNotThereIsNone) {
  Tenants tenants(kNoCgroup);
  admin::JobRequest request;
  request.job = 7;
  request.pid = 1 << 30;
  EXPECT_FALSE(tenants.add_job(request));
  EXPECT_TRUE(tenants.all().empty());
}

class WaitingRequestsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const { std::ofstream(folder_.path() + "/" + name) << content; }
  TestFolder folder_;
};

TEST_F(WaitingRequestsTest, AreTakenInOrderAndOnce) {
  write("2", admin::encode(gone(7)));
  write("1", R"({"request":"job","job":7,"pid":12,"gpu_core_limit":30})");
  write("3.new", "half");
  const WaitingRequests waiting = take_waiting_requests(folder_.path());
  EXPECT_TRUE(waiting.problems.empty());
  ASSERT_EQ(waiting.requests.size(), 2u);
  EXPECT_EQ(waiting.requests[0].gpu_core_limit, 30);
  EXPECT_TRUE(waiting.requests[1].gone);
  EXPECT_TRUE(take_waiting_requests(folder_.path()).requests.empty());
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/3.new"));
}

TEST_F(WaitingRequestsTest, OnlyRequestsAboutJobsInFilesOfTheOwnersAloneAreBelieved) {
  write("1", R"({"request":"shutdown"})");
  write("2", R"({"request":"job","job":0})");
  write("3", admin::encode(gone(3)));
  chmod((folder_.path() + "/3").c_str(), 0666);
  ASSERT_EQ(symlink("/etc/passwd", (folder_.path() + "/4").c_str()), 0);
  write("5", admin::encode(gone(5)));
  const WaitingRequests waiting = take_waiting_requests(folder_.path());
  EXPECT_EQ(waiting.problems.size(), 4u);
  ASSERT_EQ(waiting.requests.size(), 1u);
  EXPECT_EQ(waiting.requests[0].job, 5u);
  EXPECT_EQ(take_waiting_requests(folder_.path() + "/none").problems.size(), 1u);
}

}  // namespace
}  // namespace nvshare::scheduler
