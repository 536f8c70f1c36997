// A tenant that stands still for a moment: its turns are ended before its processes get a signal. Under MPS a process that ends while its
// kernels run takes its user's other programs down (docs/adr/0021); one that has no turn has no work on the GPU.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/admin_connection.h"
#include "protocol/admin.h"

namespace nvshare::cli {

// Whether one of its clients is attached to an MPS daemon, and has or may have work on the GPU.
bool works_under_mps(const protocol::admin::StatusReport& status, uint64_t tenant);

class PausedTenant {
 public:
  // Borrows the connection. Signals that end this program wait until it is resumed.
  PausedTenant(AdminConnection& admin, uint64_t tenant);
  ~PausedTenant();  // resumes it, if stop() paused it
  PausedTenant(const PausedTenant&) = delete;
  PausedTenant& operator=(const PausedTenant&) = delete;

  // Returns once none of its clients works under MPS: at once, if none did. The error says why that could not be had.
  Result<void> stop(const protocol::admin::StatusReport& status);

 private:
  Result<void> set(bool paused);

  AdminConnection& admin_;
  const uint64_t tenant_;
  bool paused_ = false;  // by us
  sigset_t former_signals_;
};

}  // namespace nvshare::cli
