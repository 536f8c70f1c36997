#include "interposer/link/tenant_use.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/fd.h"
#include "interposer/link/client.h"
#include "interposer/memory/own_limit.h"
#include "interposer/process/process.h"
#include "protocol/codec.h"

namespace nvshare::interposer {

namespace {

constexpr int kPatience_ms = 1000;

// A wrong value is told of, and refused, when the program's first context is made (client.cc); here it counts as none.
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

bool receive(int fd, protocol::Packet* packet) {
  pollfd readable{fd, POLLIN, 0};
  if (poll(&readable, 1, kPatience_ms) != 1) return false;
  const ssize_t got = recv(fd, packet->bytes, sizeof packet->bytes, 0);
  if (got <= 0) return false;
  packet->length = static_cast<uint32_t>(got);
  return true;
}

bool ask(const uint8_t (&uuid)[16], uint64_t total, uint64_t limit, TenantUse* use) {
  FileDescriptor fd = Client::open_socket();
  if (!fd) return false;
  protocol::Register hello{};
  hello.version_min = protocol::kVersionMin;
  hello.version_max = protocol::version_spoken();
  hello.asks_only = 1;
  memcpy(hello.gpu_uuid, uuid, sizeof hello.gpu_uuid);
  hello.gpu_total_bytes = total;
  hello.memory_limit = limit;
  hello.pid = getpid();
  snprintf(hello.program, sizeof hello.program, "%s", program_invocation_short_name);
  protocol::Packet packet = protocol::encode(hello, protocol::kVersionMin);
  if (::send(fd.get(), packet.bytes, packet.length, MSG_NOSIGNAL) != static_cast<ssize_t>(packet.length)) return false;
  if (!receive(fd.get(), &packet) || !protocol::decode<protocol::Registered>(packet.span())) return false;
  uint32_t expected = 0;
  do {
    if (!receive(fd.get(), &packet)) return false;
    const auto part = protocol::decode<protocol::TenantUse>(packet.span());
    if (!part || part->first != use->processes.size()) return false;
    use->limit = part->memory_limit;
    use->total = part->gpu_total_bytes;
    use->used = part->allocated;
    expected = part->processes;
    const uint32_t here = std::min(expected - part->first, protocol::kProcessesPerMessage);
    for (uint32_t i = 0; i < here; ++i) use->processes.push_back(part->process[i]);
    if (here == 0 && expected != 0) return false;
  } while (use->processes.size() < expected);
  return true;
}

}  // namespace

bool ask_tenant_use(Process& process, const uint8_t (&uuid)[16], uint64_t total, TenantUse* use) {
  const uint64_t limit = own_limit();
  Device* device = own_device(process, uuid);
  // A program that runs unshared stays so.
  const bool unshared = device != nullptr && !device->client().shared();
  *use = TenantUse{};
  if (unshared || !ask(uuid, total, limit, use)) {
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
