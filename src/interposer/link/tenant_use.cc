#include "interposer/link/tenant_use.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "interposer/link/scheduler_socket.h"
#include "interposer/memory/limits/own_limit.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

// A wrong value is told of, and refused, when the program's first context is made (link.cc); here it counts as none.
uint64_t own_limit() {
  return own_memory_limit([](const char*, const char*) {}).bytes;
}

// This process on that GPU, if it has a context there.
Device* own_device(Process& process, const uint8_t (&uuid)[16]) {
  Device* found = nullptr;
  if (!process.active()) return nullptr;
  process.for_each_device([&](Device& device) {
    if (memcmp(device.uuid().bytes, uuid, sizeof uuid) == 0) found = &device;
  });
  return found;
}

}  // namespace

bool ask_tenant_use(Process& process, const uint8_t (&uuid)[16], uint64_t total, int patience_ms, TenantUse* use) {
  const NotCancelled whole;
  const uint64_t limit = own_limit();
  Device* device = own_device(process, uuid);
  // A program that runs unshared stays so.
  const bool unshared = device != nullptr && !device->link().shared();
  *use = TenantUse{};
  if (unshared || !TenantQuery(connect_to_scheduler(), patience_ms).ask(uuid, total, limit, use)) {
    if (limit == 0) return false;
    *use = TenantUse{};
    use->limit = limit;
    use->total = total;
  }
  if (device == nullptr) return true;
  const uint64_t own = device->limit().charged();
  const int32_t pid = getpid();
  auto at = std::find_if(use->processes.begin(), use->processes.end(), [pid](const auto& each) { return each.pid == pid; });
  if (at == use->processes.end()) at = use->processes.insert(at, {pid, 0, 0});
  use->used = use->used - std::min(use->used, at->allocated) + own;
  at->allocated = own;
  return true;
}

}  // namespace nvshare::interposer
