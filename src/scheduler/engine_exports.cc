// The engine's part of legacy IPC: passes descriptors of GPU memory between the processes of one tenant. Programs that are tenants by
// themselves, in no container, unit, job or run, may open each other's if one user started them, as natively.
#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

Imported refusal(uint64_t request, ExportStatus status) {
  Imported answer{};
  answer.request = request;
  answer.status = static_cast<uint8_t>(status);
  return answer;
}

}  // namespace

bool Engine::is_alone(const Client& client) const {
  const Tenant* tenant = tenants_.find(client.tenant);
  return tenant != nullptr && tenant->kind == "process" && client.pid != 0;
}

void Engine::import(const Client& importer, const Import& message, policy::Instant now) {
  const Client* exporter = clients_.find(message.exporter);
  if (exporter == nullptr) return send(importer, refusal(message.request, ExportStatus::kUnknown));
  if (exporter->tenant != importer.tenant && !(exporter->uid == importer.uid && is_alone(*exporter) && is_alone(importer))) {
    warnings_.warn_of(importer.lines_of, "refused import " + std::to_string(importer.id), now,
                      "client {} ({}, pid {}) asked for memory of client {} ({}, pid {}), which is of another tenant: refused", importer.id,
                      importer.program, importer.pid, exporter->id, exporter->program, exporter->pid);
    return send(importer, refusal(message.request, ExportStatus::kRefused));
  }
  ExportWanted wanted{};
  const std::string& account = connections_.at(importer.connection).peer.account;
  wanted.ticket = exports_.ask({{importer.id, message.request}, exporter->id, message.export_id, account});
  if (wanted.ticket == 0) {
    warnings_.warn_of(importer.lines_of, "too many imports " + std::to_string(importer.id), now,
                      "client {} ({}, pid {}) has as many imports as it may, or named one twice: refused", importer.id, importer.program,
                      importer.pid);
    return send(importer, refusal(message.request, ExportStatus::kFailed));
  }
  wanted.export_id = message.export_id;
  std::copy(std::begin(message.nonce), std::end(message.nonce), std::begin(wanted.nonce));
  send(*exporter, wanted);
}

void Engine::exported(const Client& exporter, const Exported& message, Descriptors descriptors) {
  std::optional<Exports::Asked> asked = exports_.asked(message.ticket, exporter.id);
  if (!asked) return;  // the importer has gone, or has given up
  const bool is_ok = static_cast<ExportStatus>(message.status) == ExportStatus::kOk;
  const bool is_last = !is_ok || uint64_t{message.first} + static_cast<uint64_t>(descriptors.count()) >= message.chunks;
  if (is_last) exports_.answered(message.ticket, is_ok);
  Imported passed{asked->importer.request, message.bytes, message.chunk_bytes, message.chunks, message.first, message.status, {}};
  send_to(asked->importer.client, passed, std::move(descriptors));
}

void Engine::inherit(const std::optional<ImportKey>& heir) {
  if (heir) send_to(heir->client, ImportInherited{heir->request});
}

void Engine::client_left_exports(policy::ClientId client) {
  Exports::Departure departure = exports_.client_left(client);
  for (const ImportKey& import : departure.unanswered) {
    send_to(import.client, refusal(import.request, ExportStatus::kUnknown));
  }
  for (const ImportKey& heir : departure.heirs) inherit(heir);
}

}  // namespace nvshare::scheduler
