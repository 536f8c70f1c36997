// Legacy IPC: passes descriptors of GPU memory between the processes of one tenant. Programs that are tenants by themselves, in no
// container, unit, job or run, may open each other's if one user started them, as natively. One thread, the engine's.
#pragma once

#include <optional>
#include <string>

#include "base/descriptors.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/log.h"
#include "scheduler/memory/exports.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class ExportBroker {
 public:
  ExportBroker(const Clients& clients, const Tenants& tenants, const ClientMessenger& messenger, RepeatedWarnings& warnings)
      : clients_(clients), tenants_(tenants), messenger_(messenger), warnings_(warnings) {}

  // `account`: whose bounds it counts against, besides the client's.
  void import(const RegisteredClient& importer, const std::string& account, const protocol::Import& message, policy::Instant now);
  void exported(const RegisteredClient& exporter, const protocol::Exported& message, Descriptors descriptors);
  void import_closed(const RegisteredClient& importer, const protocol::ImportClosed& message);
  void export_ended(const RegisteredClient& exporter, const protocol::ExportEnded& message);
  void client_left(policy::ClientId client);

 private:
  bool may_open(const RegisteredClient& importer, const RegisteredClient& exporter) const;
  void inherit(const std::optional<ImportKey>& heir);

  const Clients& clients_;
  const Tenants& tenants_;
  const ClientMessenger& messenger_;
  RepeatedWarnings& warnings_;
  Exports exports_;
};

}  // namespace nvshare::scheduler
