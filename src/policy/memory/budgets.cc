#include "policy/memory/memory.h"

namespace nvshare::policy {
namespace {

// Those of the lock that were not asked to drop, and are not settled: nothing is to be said to the others. In the order that `before` says;
// mostly there is one, or none.
template <typename Before, typename Look>
void each_unsettled_holder(const Gpu& gpu, Before before, Look look) {
  if (gpu.unsettled.size() < 2) {
    Client* const only = gpu.unsettled.empty() ? nullptr : gpu.unsettled.begin()->second;
    if (only != nullptr && only->stays()) look(*only);
    return;
  }
  std::vector<Client*> holders;
  for (const auto& [id, client] : gpu.unsettled) {
    if (client->stays()) holders.push_back(client);
  }
  std::sort(holders.begin(), holders.end(), [&](const Client* a, const Client* b) { return before(*a, *b); });
  for (Client* client : holders) look(*client);
}

bool granted_before(const Client& a, const Client& b) { return a.grant < b.grant; }

Bytes missing_to(const Client& client) { return need(client) - client.budget.bytes; }

// First who lacks least: a small one need not wait for all that a large one still has to load, and delays that by little. All of them fit
// together, so each comes to its turn.
bool lacks_less(const Client& a, const Client& b) {
  const Bytes of_a = missing_to(a), of_b = missing_to(b);
  return of_a != of_b ? of_a < of_b : granted_before(a, b);
}

void raise(Gpu& gpu, Client& client, Bytes to) {
  client.budget.bytes = to;
  client.budget.dirty = true;
  recount(gpu, client);
}

}  // namespace

static void raise_budget(Context& context, Gpu& gpu, Client& client) {
  if (client.turn.unproven && !gpu.waiting.empty()) return;  // is about to be dropped: what is free is for those who wait
  const Bytes missing = missing_to(client);
  const Bytes free = free_bytes(context.config(), gpu);
  if (missing > 0 && free > 0) {
    if (free >= missing) {
      raise(gpu, client, need(client));
    } else if (client.state == ClientState::kLoading && (free >= kBudgetStep || client.budget.dirty)) {
      raise(gpu, client, client.budget.bytes + free);  // loads while others still move out
    }
  }
  if (client.growth && client.budget.bytes >= need(client) && !client.growth->satisfied) {
    client.growth->satisfied = true;
    client.budget.dirty = true;
    recount(gpu, client);
  }
  if (client.state == ClientState::kLoading && client.turn.load.failures > 0 && client.turn.load.retry_at != 0) {
    if (client.turn.load.holds(context.now)) {
      context.wake(gpu, client.turn.load.retry_at);
    } else {
      client.turn.load.retry_at = 0;  // told once per failure
      client.budget.dirty = true;
    }
  }
}

void raise_budgets(Context& context, Gpu& gpu) {
  each_unsettled_holder(gpu, lacks_less, [&](Client& client) { raise_budget(context, gpu, client); });
}

void lower_budget(Gpu& gpu, Client& client, const MemoryChanged& event) {
  if (!client.holds_lock() || event.budget_sequence != client.budget.sequence || event.budget >= client.budget.bytes) return;
  // What it needs stays reserved for it: it would only be given again.
  client.budget.bytes = std::max({event.budget, client.memory.resident, std::min(client.budget.bytes, need(client))});
  client.budget.told = std::min(client.budget.told, client.budget.bytes);
  client.budget.slack_declined = true;
  recount(gpu, client);
}

void give_slack(Context& context, Gpu& gpu) {
  if (!gpu.waiting.empty()) return;
  for (const auto& [id, client] : gpu.unsettled) {
    const bool settled = client->state != ClientState::kDropping && client->state != ClientState::kUnresponsive &&
                         !client->evictions.current && (!client->stays() || client->budget.bytes >= need(*client));
    if (!settled) return;
  }
  const auto slack_now = [&] { return std::min(kSlackMax, free_bytes(context.config(), gpu) / 8); };
  if (slack_now() < kSlackMin) return;
  std::vector<Client*> takers;
  find_slack_takers(gpu, slack_now() / 2, takers);
  for (Client* client : takers) {
    const Bytes slack = slack_now();
    if (slack < kSlackMin) return;  // what is free becomes less with each
    if (slack_of(*client) < slack / 2) raise(gpu, *client, need(*client) + slack);
  }
}

void send_budget(Context& context, Gpu& gpu, Client& client) {
  if (!client.budget.dirty) return;
  client.budget.dirty = false;
  const bool raised = client.budget.bytes > std::max(client.budget.told, client.memory.resident);
  client.budget.told = client.budget.bytes;
  const uint64_t sequence = ++client.budget.sequence;
  if (client.growth && client.growth->satisfied) {
    context.actions.push_back(SendMemory{client.id, client.growth->request, true, client.budget.bytes, sequence});
    growth_ends(client, context.now);
  } else {
    context.actions.push_back(SendLock{client.id, client.grant, client.budget.bytes, sequence});
  }
  recount(gpu, client);
  if (raised && free_bytes(context.config(), gpu) < 0 && !context.state.broken) {
    context.state.broken = "GPU " + std::to_string(gpu.id) + ": budgets of " + mib(committed(gpu)) + " handed out past the safe limit of " +
                           mib(safe_limit(context.config(), gpu));
  }
}

void send_budgets(Context& context, Gpu& gpu) {
  each_unsettled_holder(gpu, granted_before, [&](Client& client) { send_budget(context, gpu, client); });
}

}  // namespace nvshare::policy
