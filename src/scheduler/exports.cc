#include "scheduler/exports.h"

#include <algorithm>

namespace nvshare::scheduler {

uint64_t Exports::ask(const Asked& asked) {
  tickets_[next_ticket_] = asked;
  return next_ticket_++;
}

std::optional<Exports::Asked> Exports::asked(uint64_t ticket, policy::ClientId exporter) const {
  auto at = tickets_.find(ticket);
  if (at == tickets_.end() || at->second.exporter != exporter) return std::nullopt;
  return at->second;
}

void Exports::answered(uint64_t ticket, bool imported) {
  auto at = tickets_.find(ticket);
  if (at == tickets_.end()) return;
  Asked asked = at->second;
  tickets_.erase(at);
  if (!imported) return;
  auto known = std::find_if(memories_.begin(), memories_.end(), [&](const auto& entry) {
    return entry.second.exporter == asked.exporter && entry.second.export_id == asked.export_id;
  });
  if (known == memories_.end()) known = memories_.emplace(next_memory_++, Memory{asked.exporter, asked.export_id, {}, {}}).first;
  known->second.importers.insert(asked.importer);
}

// Forgets memory that nobody imports; finds it an heir when it has no owner.
std::optional<ImportKey> Exports::settle(std::map<uint64_t, Memory>::iterator at) {
  Memory& memory = at->second;
  if (memory.importers.empty()) {
    memories_.erase(at);
    return std::nullopt;
  }
  if (memory.exporter != 0 || (memory.heir && memory.importers.contains(*memory.heir))) return std::nullopt;
  memory.heir = *memory.importers.begin();
  return memory.heir;
}

std::optional<ImportKey> Exports::import_closed(const ImportKey& import) {
  for (auto at = memories_.begin(); at != memories_.end(); ++at) {
    if (at->second.importers.erase(import) > 0) return settle(at);
  }
  // Given up while the answer was on its way.
  std::erase_if(tickets_, [&](const auto& entry) { return entry.second.importer == import; });
  return std::nullopt;
}

std::optional<ImportKey> Exports::export_ended(policy::ClientId exporter, uint64_t export_id) {
  for (auto at = memories_.begin(); at != memories_.end(); ++at) {
    if (at->second.exporter != exporter || at->second.export_id != export_id) continue;
    at->second.exporter = 0;
    return settle(at);
  }
  return std::nullopt;
}

Exports::Departure Exports::client_left(policy::ClientId client) {
  Departure departure;
  for (auto at = tickets_.begin(); at != tickets_.end();) {
    const Asked& asked = at->second;
    if (asked.exporter == client && asked.importer.client != client) departure.unanswered.push_back(asked.importer);
    at = asked.exporter == client || asked.importer.client == client ? tickets_.erase(at) : std::next(at);
  }
  for (auto at = memories_.begin(); at != memories_.end();) {
    auto here = at++;  // settle() may erase it
    if (here->second.exporter == client) here->second.exporter = 0;
    std::erase_if(here->second.importers, [&](const ImportKey& import) { return import.client == client; });
    if (auto heir = settle(here)) departure.heirs.push_back(*heir);
  }
  return departure;
}

}  // namespace nvshare::scheduler
