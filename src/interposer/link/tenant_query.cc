#include "interposer/link/tenant_query.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "interposer/link/scheduler_socket.h"

namespace nvshare::interposer {

bool TenantQuery::say_hello(const uint8_t (&uuid)[16], uint64_t total, uint64_t own_limit) {
  protocol::Register hello{};
  hello.version_min = protocol::kVersionMin;
  hello.version_max = protocol::version_spoken();
  hello.asks_only = 1;
  memcpy(hello.gpu_uuid, uuid, sizeof hello.gpu_uuid);
  hello.gpu_total_bytes = total;
  hello.memory_limit = own_limit;
  hello.pid = getpid();
  snprintf(hello.program, sizeof hello.program, "%s", program_invocation_short_name);
  const protocol::Packet packet = protocol::encode(hello, protocol::kVersionMin);
  return send_whole(connection_.get(), packet.span(), {});
}

bool TenantQuery::receive(protocol::Packet* packet) {
  if (!wait_readable(connection_.get(), int64_t{patience_ms_} * 1'000'000)) return false;
  const ssize_t got = recv(connection_.get(), packet->bytes, sizeof packet->bytes, 0);
  if (got <= 0) return false;
  packet->length = static_cast<uint32_t>(got);
  return true;
}

bool TenantQuery::ask(const uint8_t (&uuid)[16], uint64_t total, uint64_t own_limit, TenantUse* use) {
  protocol::Packet packet;
  if (!connection_ || !say_hello(uuid, total, own_limit)) return false;
  if (!receive(&packet) || !protocol::decode<protocol::Registered>(packet.span())) return false;
  uint32_t expected = 0;
  do {
    if (!receive(&packet)) return false;
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

}  // namespace nvshare::interposer
