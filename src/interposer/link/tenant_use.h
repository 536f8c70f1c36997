// What this process's tenant has of a GPU, as programs are to see it: for those that ask NVML, whether they use CUDA or not, and for those
// that ask CUDA before they have a context.
#pragma once

#include <cstdint>

#include "interposer/link/tenant_query.h"

namespace nvshare::interposer {

class Process;

// Asks the scheduler, and waits `patience_ms` at most for each part of its answer; this process's own use is put in as it stands now.
// `total`: as the driver says. Without a scheduler (or with one that refuses): this process alone, if it has a limit of its own; else
// false, and the driver's answer stands.
bool ask_tenant_use(Process& process, const uint8_t (&uuid)[16], uint64_t total, int patience_ms, TenantUse* use);

// The size that a GPU has for this program: the lower of what the scheduler takes it to be and the tenant's limit. 0 = not known, no limit.
inline uint64_t shown_total(uint64_t real, uint64_t configured, uint64_t limit) {
  if (configured != 0 && configured < real) real = configured;
  return limit != 0 && limit < real ? limit : real;
}

}  // namespace nvshare::interposer
