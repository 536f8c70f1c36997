// Memory that one client handed to others (legacy IPC): who asked whom, and whose memory it is. It is counted once: as the exporter's
// while it has it, then as the memory of one importer that still maps it, for the driver keeps it until the last of them lets go.
// Each call takes time that grows with the logarithm of what is known, and what is known is bounded for each client and tenant.
// Pure bookkeeping, not thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
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
    std::string account;  // whose bounds the import counts against, besides its client's
  };

  // An importer asks; gives the ticket under which the exporter is to answer. 0: it has as many imports as bounds.h allows, or one of that
  // number already.
  uint64_t ask(const Asked& asked);
  // Which importer asked that, of that exporter; nothing for a stale or foreign ticket.
  std::optional<Asked> asked(uint64_t ticket, policy::ClientId exporter) const;
  // The exporter's last answer to a ticket has come: the importer has the memory, or has been refused it.
  void answered(uint64_t ticket, bool imported);

  // Each gives the import whose client the memory is counted for from now on, if it is one that was not before.
  std::optional<ImportKey> import_closed(ImportKey import);
  std::optional<ImportKey> export_ended(policy::ClientId exporter, uint64_t export_id);

  struct Departure {
    std::vector<ImportKey> heirs;
    std::vector<ImportKey> unanswered;  // who asked the client and will hear nothing
  };
  Departure client_left(policy::ClientId client);

  bool is_empty() const {
    return imports_.empty() && tickets_.empty() && tickets_of_exporter_.empty() && memories_.empty() && memory_of_.empty() &&
           clients_.empty() && accounts_.empty();
  }

 private:
  struct Import {
    uint64_t ticket = 0;  // until it is answered
    uint64_t memory = 0;  // from then on
    std::string account;
  };
  struct Exported {
    policy::ClientId exporter = 0;  // 0: it has let go
    uint64_t export_id = 0;
    std::set<ImportKey> importers;
    std::optional<ImportKey> heir;  // whose it is when the exporter has let go
  };
  struct Count {
    int64_t imports = 0;
    int64_t unanswered = 0;
  };
  using Memories = std::map<uint64_t, Exported>;
  std::optional<ImportKey> settle(Memories::iterator at);
  void let_go(Memories::iterator at);
  void forget_ticket(uint64_t ticket);
  void forget_import(std::map<ImportKey, Import>::iterator at);

  std::map<ImportKey, Import> imports_;
  std::map<uint64_t, Asked> tickets_;
  std::set<std::pair<policy::ClientId, uint64_t>> tickets_of_exporter_;
  Memories memories_;
  std::map<std::pair<policy::ClientId, uint64_t>, uint64_t> memory_of_;  // by exporter and export_id, while it has it
  std::map<policy::ClientId, Count> clients_;
  std::map<std::string, int64_t> accounts_;
  uint64_t next_ticket_ = 1;
  uint64_t next_memory_ = 1;
};

}  // namespace nvshare::scheduler
