// Swaps that hide behind work (docs/adr/0023): while clients run, the memory of who comes next moves in beside them as far as it fits, and
// what others have there moves out for it. Little by little: a batch each way, then a pause that is a multiple of what it takes. So nobody
// who needs room, or the lock, waits for more than a batch, and what is promised here is never more than that.
#include "policy/memory/memory.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kBatchMost = 256 * kMiB;
constexpr int64_t kPace = 4;  // a batch takes its part of so much time: of the link's speed, and of the memory's bandwidth beside it
constexpr Duration kAfterOthers = 100 * kMillisecond;  // from a movement that somebody waited for

Bytes batch_on(const Context& context, const Gpu& gpu) {
  return std::clamp(safe_limit(context.config(), gpu) / 64, kPieceMost, kBatchMost);
}

// What stays free for programs that run and grow, so that they do not wait for what was brought in a moment ago.
Bytes kept_free(const Context& context, const Gpu& gpu) { return std::min(kGrowthBatchMax, safe_limit(context.config(), gpu) / 64); }

// Nobody loads, leaves, grows or moves.
bool is_settled(const Gpu& gpu) {
  return gpu.departed.empty() && std::none_of(gpu.unsettled.begin(), gpu.unsettled.end(), [](const auto& entry) {
           return entry.second->holds_lock() || entry.second->evictions.current;
         });
}

void watch(Context& context, Gpu& gpu, Client& client) {
  Prefetch& prefetch = *client.prefetches.current;
  if (prefetch.overdue) return;
  if (context.now < prefetch.deadline) return context.wake(gpu, prefetch.deadline);
  prefetch.overdue = true;
  client.evictions.backoff.failed(context.now);
  recount(gpu, client);
  context.wake(gpu, client.evictions.backoff.retry_at);
  context.note(Note::Level::kWarning, client.id, "does not bring memory in as asked; what it was promised stays counted until it answers");
}

}  // namespace

void prefetch_next(Context& context, Gpu& gpu) {
  if (gpu.prefetch.client != 0) return watch(context, gpu, gpu.clients.at(gpu.prefetch.client));
  if (!context.config().prefetch || !gpu.prefetch.next || gpu.quota.limited || !context.state.gangs.empty() || !is_settled(gpu)) return;
  Client& next = gpu.clients.at(*gpu.prefetch.next);
  const Bytes missing = next.memory.allocated - next.memory.resident;
  if (!next.prefetches.supported || next.prefetches.ended || next.evictions.backoff.failures > 0 || missing <= 0) return;
  if (context.now < gpu.prefetch.not_before) return context.wake(gpu, gpu.prefetch.not_before);

  const Bytes batch = batch_on(context, gpu);
  const Bytes free = free_bytes(context.config(), gpu) - kept_free(context, gpu);
  const Bytes in = std::min({batch, missing, free});
  const bool moves_in = in >= std::min(missing, kPieceMost);
  // A batch more than what comes in now, so that both directions of the link work at once.
  const Bytes out = std::min(batch, missing - std::max<Bytes>(free, 0));
  const bool moves_out = out > 0 && evict_ahead(context, gpu, next, out);
  if (!moves_in && !moves_out) return;
  gpu.prefetch.not_before = context.now + kPace * std::max<Duration>(swap_time(gpu, batch, batch), kMillisecond);
  context.wake(gpu, gpu.prefetch.not_before);
  if (!moves_in) return;
  const Instant deadline = context.now + context.config().unanswered_grace;
  next.prefetches.current = Prefetch{context.state.next_prefetch++, next.memory.resident + in, next.memory.resident, deadline, false};
  gpu.prefetch.client = next.id;
  recount(gpu, next);
  context.wake(gpu, deadline);
  context.actions.push_back(SendPrefetch{next.id, next.prefetches.current->id, next.prefetches.current->budget});
  if (free_bytes(context.config(), gpu) < 0 && !context.state.broken)
    context.state.broken = "GPU " + std::to_string(gpu.id) + ": a prefetch was promised past the safe limit";
}

void put_off_prefetch(const Context& context, Gpu& gpu) {
  gpu.prefetch.not_before = std::max(gpu.prefetch.not_before, context.now + kAfterOthers);
}

void prefetch_ends(Gpu& gpu, Client& client) {
  if (!client.prefetches.current) return;
  client.prefetches.current.reset();
  gpu.prefetch.client = 0;
  recount(gpu, client);
}

void take_prefetched(Gpu& gpu, Client& client, const SwapProgressed& event, Bytes copied) {
  client.totals.prefetched += std::min(copied, kBytesMost);
  client.prefetches.unused += std::min(copied, kBytesMost);
  if (!event.finished || !client.prefetches.current || client.prefetches.current->id != event.id) return;
  client.prefetches.ended = event.failed || client.memory.resident <= client.prefetches.current->resident_before;
  prefetch_ends(gpu, client);
}

void note_in_vain(Client& client, Bytes resident) {
  const Bytes lost = std::max<Bytes>(client.prefetches.unused - resident, 0);
  client.prefetches.unused -= lost;
  client.totals.prefetched_in_vain += lost;
}

}  // namespace nvshare::policy
