// Memory that one client handed to others (legacy IPC): who asked whom, and whose memory it is. It is counted once: as the exporter's
// while it has it, then as the memory of one importer that still maps it, for the driver keeps it until the last of them lets go.
// Pure bookkeeping, not thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

// One import of one client.
struct ImportKey {
  policy::ClientId client = 0;
  uint64_t request = 0;
  bool operator==(const ImportKey&) const = default;
  bool operator<(const ImportKey& other) const { return std::tie(client, request) < std::tie(other.client, other.request); }
};

class Exports {
 public:
  struct Asked {
    ImportKey importer;
    policy::ClientId exporter = 0;
    uint64_t export_id = 0;
  };

  // An importer asks; gives the ticket under which the exporter is to answer.
  uint64_t ask(const Asked& asked);
  // Who asked that, of that exporter; nothing for a stale or foreign ticket.
  std::optional<Asked> asked(uint64_t ticket, policy::ClientId exporter) const;
  // The exporter's last answer to a ticket has come: the importer has the memory, or has been refused it.
  void answered(uint64_t ticket, bool imported);

  // Each gives the import whose client the memory is counted for from now on, if it is one that was not before.
  std::optional<ImportKey> import_closed(const ImportKey& import);
  std::optional<ImportKey> export_ended(policy::ClientId exporter, uint64_t export_id);

  struct Departure {
    std::vector<ImportKey> heirs;
    std::vector<ImportKey> unanswered;  // who asked the client and will hear nothing
  };
  Departure client_left(policy::ClientId client);

 private:
  struct Memory {
    policy::ClientId exporter = 0;  // 0: it has let go
    uint64_t export_id = 0;
    std::set<ImportKey> importers;
    std::optional<ImportKey> heir;  // whose it is when the exporter has let go
  };
  std::optional<ImportKey> settle(std::map<uint64_t, Memory>::iterator at);

  std::map<uint64_t, Asked> tickets_;
  std::map<uint64_t, Memory> memories_;
  uint64_t next_ticket_ = 1;
  uint64_t next_memory_ = 1;
};

}  // namespace nvshare::scheduler
