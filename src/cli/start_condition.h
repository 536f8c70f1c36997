// What `nvsharectl run --wait` and `--after` let a program begin on. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

struct StartCondition {
  bool free_gpu = false;          // no program runs or waits on the GPUs below
  std::vector<std::string> gpus;  // their UUIDs; empty: one of all GPUs is enough
  std::vector<uint64_t> ended;    // ids of tenants that have to have ended
};

// Ids of the tenants that are meant, as the scheduler reads it: by "job=NUMBER" a Slurm job, by a tenant's number that tenant, else all of
// that name. Empty: the scheduler knows none.
std::vector<uint64_t> tenants_named(const protocol::admin::StatusReport& status, const std::string& name);

// A run has ended when its program has, a Slurm job when Slurm says so, all others when none of their programs uses a GPU.
bool has_ended(const protocol::admin::StatusReport& status, uint64_t tenant);

// A few words on what is missing, for people; empty: the program may begin.
std::string missing_for(const protocol::admin::StatusReport& status, const StartCondition& condition);

}  // namespace nvshare::cli
