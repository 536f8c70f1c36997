#include "slurm/job_link.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fd.h"
#include "protocol/admin_connection.h"
#include "protocol/paths.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

constexpr int kPatienceMs = 2000;  // slurmstepd waits for no scheduler longer than that

// Nothing: nobody answers there, so that it has to be told later.
enum class Answer { kOk, kNobody };

Result<Answer> ask(const std::string& runtime_dir, const admin::JobRequest& request) {
  auto client = admin::AdminConnection::open(runtime_dir);
  if (!client) return Answer::kNobody;
  auto line = client->ask(request, kPatienceMs);
  if (!line) return Answer::kNobody;
  auto tenant = admin::decode_tenant(*line);
  if (!tenant) return tenant.error();
  return Answer::kOk;
}

// A folder of ours that nobody else can write, made where it is missing.
Result<void> own_folder(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return error_format("cannot create %.150s: %s", path.c_str(), std::strerror(errno));
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return error_format("cannot look at %.150s: %s", path.c_str(), std::strerror(errno));
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return error_format("%.150s is not a folder that only user %u can write", path.c_str(), geteuid());
  return {};
}

std::string file_name(const std::string& folder) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char name[64];
  std::snprintf(name, sizeof name, "/%012lld.%09ld.%d", static_cast<long long>(now.tv_sec), now.tv_nsec, getpid());
  return folder + name;
}

// Its name, once it is whole.
Result<std::string> leave_in_file(const std::string& runtime_dir, const admin::JobRequest& request) {
  const std::string folder = runtime_dir + protocol::kJobsFolder;
  if (auto ok = own_folder(runtime_dir, 0755); !ok) return ok.error();
  if (auto ok = own_folder(folder, 0700); !ok) return ok.error();
  const std::string file = file_name(folder);
  const std::string beside = file + ".new";
  const std::string line = admin::encode(request);
  FileDescriptor fd(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = fd && write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (written && std::rename(beside.c_str(), file.c_str()) == 0) return file;
  const int problem = errno;
  unlink(beside.c_str());
  return error_format("cannot write %.150s: %s", file.c_str(), std::strerror(problem));
}

}  // namespace

Result<Told> tell(const std::string& runtime_dir, const admin::JobRequest& request) {
  Result<Answer> answer = ask(runtime_dir, request);
  if (!answer) return answer.error();
  if (*answer == Answer::kOk) return Told::kNow;
  Result<std::string> file = leave_in_file(runtime_dir, request);
  if (!file) return file.error();
  // One that came meanwhile may have looked into the folder before: it is told now. It takes the same thing twice.
  Result<Answer> later = ask(runtime_dir, request);
  if (!later) {
    unlink(file->c_str());
    return later.error();
  }
  if (*later == Answer::kNobody) return Told::kWaits;
  unlink(file->c_str());
  return Told::kNow;
}

std::string use_of_job(const std::string& runtime_dir, uint32_t job) {
  auto client = admin::AdminConnection::open(runtime_dir);
  if (!client) return {};
  auto line = client->ask(admin::StatusRequest{.brief = true}, kPatienceMs);
  if (!line) return {};
  auto status = admin::decode_status(*line);
  if (!status) return {};
  const auto tenant = std::find_if(status->tenants.begin(), status->tenants.end(), [&](const auto& one) { return one.job == job; });
  if (tenant == status->tenants.end() || tenant->usage.empty()) return {};
  int64_t running_ns = 0, billed_ns = 0, peak = 0;
  for (const admin::UsageReport& usage : tenant->usage) {
    running_ns += usage.running_ns;
    billed_ns += usage.billed_ns;
    peak = std::max(peak, usage.memory_peak);
  }
  char text[128];
  std::snprintf(text, sizeof text, "nvshare: gpu_time=%.1fs billed=%.1fs memory_peak=%lldMiB", static_cast<double>(running_ns) / 1e9,
                static_cast<double>(billed_ns) / 1e9, static_cast<long long>(peak >> 20));
  return text;
}

}  // namespace nvshare::slurm
