#include "scheduler/tenants/waiting_requests.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "scheduler/persisted_file.h"

namespace nvshare::scheduler {
namespace {

namespace admin = protocol::admin;

Result<admin::JobRequest> read_request(const std::string& file) {
  Result<std::optional<std::string>> content = read_persisted_file(file);
  if (!content) return content.error();
  if (!content->has_value()) return error_format("%.150s is gone", file.c_str());
  Result<admin::Request> request = admin::decode_request(**content);
  if (!request) return error_format("%.100s: %.140s", file.c_str(), request.error().text);
  const auto* job = std::get_if<admin::JobRequest>(&*request);
  if (job == nullptr) return error_format("%.150s is no request about a job", file.c_str());
  return *job;
}

}  // namespace

WaitingRequests take_waiting_requests(const std::string& folder) {
  WaitingRequests taken;
  std::vector<std::string> files;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    // One that is being written ends in this; it gets its name when it is whole.
    if (!entry.path().string().ends_with(".new")) files.push_back(entry.path().string());
  }
  if (problem) taken.problems.push_back("cannot read " + folder + ": " + problem.message());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    Result<admin::JobRequest> request = read_request(file);
    if (request) {
      taken.requests.push_back(*request);
    } else {
      taken.problems.emplace_back(request.error().text);
    }
    unlink(file.c_str());
  }
  return taken;
}

}  // namespace nvshare::scheduler
