#include "scheduler/memory/exports.h"

#include <algorithm>

#include "scheduler/bounds.h"

namespace nvshare::scheduler {

uint64_t Exports::ask(const Asked& asked) {
  const auto known = clients_.find(asked.importer.client);
  const Count count = known == clients_.end() ? Count{} : known->second;
  if (count.imports >= bounds::kImportsPerClient || count.unanswered >= bounds::kUnansweredImports) return 0;
  const auto account = accounts_.find(asked.account);
  if (!asked.account.empty() && account != accounts_.end() && account->second >= bounds::kImportsPerTenant) return 0;
  if (!imports_.try_emplace(asked.importer, Import{next_ticket_, 0, asked.account}).second) return 0;
  ++clients_[asked.importer.client].imports;
  ++clients_[asked.importer.client].unanswered;
  ++accounts_[asked.account];
  tickets_[next_ticket_] = asked;
  tickets_of_exporter_.emplace(asked.exporter, next_ticket_);
  return next_ticket_++;
}

std::optional<Exports::Asked> Exports::asked(uint64_t ticket, policy::ClientId exporter) const {
  auto at = tickets_.find(ticket);
  if (at == tickets_.end() || at->second.exporter != exporter) return std::nullopt;
  return at->second;
}

void Exports::forget_ticket(uint64_t ticket) {
  const auto at = tickets_.find(ticket);
  if (at == tickets_.end()) return;
  tickets_of_exporter_.erase({at->second.exporter, ticket});
  --clients_[at->second.importer.client].unanswered;
  tickets_.erase(at);
}

void Exports::forget_import(std::map<ImportKey, Import>::iterator at) {
  forget_ticket(at->second.ticket);
  --clients_[at->first.client].imports;
  if (const auto account = accounts_.find(at->second.account); --account->second == 0) accounts_.erase(account);
  imports_.erase(at);
}

void Exports::answered(uint64_t ticket, bool imported) {
  auto at = tickets_.find(ticket);
  if (at == tickets_.end()) return;
  const Asked asked = at->second;
  const auto import = imports_.find(asked.importer);
  if (!imported) return forget_import(import);
  forget_ticket(ticket);
  const auto [known, is_new] = memory_of_.try_emplace({asked.exporter, asked.export_id}, next_memory_);
  if (is_new) memories_.emplace(next_memory_++, Exported{asked.exporter, asked.export_id, {}, {}});
  import->second.ticket = 0;
  import->second.memory = known->second;
  memories_.at(known->second).importers.insert(asked.importer);
}

void Exports::let_go(Memories::iterator at) {
  memory_of_.erase({at->second.exporter, at->second.export_id});
  at->second.exporter = 0;
}

// Forgets memory that nobody imports; finds it an heir when it has no owner.
std::optional<ImportKey> Exports::settle(Memories::iterator at) {
  Exported& memory = at->second;
  if (memory.importers.empty()) {
    let_go(at);
    memories_.erase(at);
    return std::nullopt;
  }
  if (memory.exporter != 0 || (memory.heir && memory.importers.contains(*memory.heir))) return std::nullopt;
  memory.heir = *memory.importers.begin();
  return memory.heir;
}

std::optional<ImportKey> Exports::import_closed(ImportKey key) {
  const auto import = imports_.find(key);
  if (import == imports_.end()) return std::nullopt;
  const auto memory = memories_.find(import->second.memory);
  forget_import(import);  // its ticket as well: it was given up while the answer was on its way
  if (memory == memories_.end()) return std::nullopt;
  memory->second.importers.erase(key);
  return settle(memory);
}

std::optional<ImportKey> Exports::export_ended(policy::ClientId exporter, uint64_t export_id) {
  const auto known = memory_of_.find({exporter, export_id});
  if (known == memory_of_.end()) return std::nullopt;
  const auto memory = memories_.find(known->second);
  let_go(memory);
  return settle(memory);
}

Exports::Departure Exports::client_left(policy::ClientId client) {
  Departure departure;
  for (auto at = tickets_of_exporter_.lower_bound({client, 0}); at != tickets_of_exporter_.end() && at->first == client;) {
    const ImportKey importer = tickets_.at((at++)->second).importer;
    if (importer.client != client) departure.unanswered.push_back(importer);
    forget_import(imports_.find(importer));
  }
  // What it imported, then what it exported: it inherits nothing of its own.
  for (auto at = imports_.lower_bound({client, 0}); at != imports_.end() && at->first.client == client;) {
    const auto import = at++;
    if (auto heir = import_closed(import->first)) departure.heirs.push_back(*heir);
  }
  for (auto at = memory_of_.lower_bound({client, 0}); at != memory_of_.end() && at->first.first == client;) {
    const auto memory = memories_.find((at++)->second);
    let_go(memory);
    if (auto heir = settle(memory)) departure.heirs.push_back(*heir);
  }
  // It may have been named heir on the way, for another of its imports of the same memory.
  std::erase_if(departure.heirs, [client](const ImportKey& heir) { return heir.client == client; });
  clients_.erase(client);
  return departure;
}

}  // namespace nvshare::scheduler
