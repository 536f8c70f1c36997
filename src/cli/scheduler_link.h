// Finds the scheduler that programs on this machine would use, or starts the user's own. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "cli/admin_connection.h"
#include "cli/environment.h"

namespace nvshare::cli {

// Where the programs of this installation are: <root>/bin, <root>/lib.
struct Installation {
  std::string root;  // without a slash at its end

  // From the path of the running program.
  static Result<Installation> of_this_program();

  // <root>/bin/NAME, else the first in PATH.
  Result<std::string> program(const std::string& name) const;
  // NVSHARE_LIBRARY, else <root>/lib/libnvshare.so, else where packages put it below <root>. Checked to be readable.
  Result<std::string> library() const;
};

struct SchedulerLink {
  std::string runtime_directory;
  bool own = false;      // the user's own scheduler, not the machine's
  bool started = false;  // by this call
  // Nothing when the scheduler does not let us use its admin socket (the machine's scheduler answers root and its own user only).
  std::optional<AdminConnection> admin;
  std::string admin_error;  // why there is none
};

// Only NVSHARE_RUNTIME_DIR where it is set; else the machine's runtime directory, then the user's own, if it is that user's alone.
Result<SchedulerLink> find_scheduler();

// As find_scheduler; where nobody answers, starts `nvshare-scheduler --exit-when-idle` in NVSHARE_RUNTIME_DIR or the user's own directory
// and waits until it answers. Two callers at once start one.
Result<SchedulerLink> find_or_start_scheduler(const Installation& installation);

// $XDG_RUNTIME_DIR/nvshare, where that folder is this user's (or root's, and nobody can rename what is this user's there), else
// /tmp/nvshare-<uid>. What it is named may be somebody else's.
std::string own_runtime_directory();

// The log that the user's own scheduler writes there; nothing: there is none, or the directory is not this user's alone.
std::optional<std::string> own_log();

// The last line of a log that is not empty, or words that say that there is none.
std::string last_line_of(const std::string& path);

}  // namespace nvshare::cli
