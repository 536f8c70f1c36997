// nvsharectl doctor --bundle: what a bug report needs, in one file of text that its sender can read first. Names of people, machines,
// tenants and programs are numbers in it, and what looks like a key or an address is taken out (scrubber.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/doctor/checks.h"
#include "protocol/admin.h"

namespace nvshare::cli::doctor {

struct BundleParts {
  std::string releases;  // as nvsharectl version has them
  std::string machine;   // its kernel and distribution
  std::vector<Finding> findings;
  std::vector<std::string> hidden_hosts, hidden_users;
  std::vector<std::string> environment;                       // NAME=VALUE, of ours and CUDA's alone
  std::vector<std::pair<std::string, std::string>> settings;  // a file's path and its text
  protocol::admin::StatusReport status;
  std::string status_line;  // as the scheduler sent it; empty: status_error
  std::string status_error;
  std::string trace_line;  // the last minute, as the scheduler sent it; may be empty
  std::string log;
};

// Pure.
std::string bundle_of(const BundleParts& parts);

// Of this machine, and of the scheduler that answers.
BundleParts collect_bundle(const std::vector<Finding>& findings);

// A file of the caller's alone, which must not be there yet.
Result<void> write_bundle(const std::string& file, const std::string& text);

}  // namespace nvshare::cli::doctor
