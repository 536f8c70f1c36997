#include "scheduler/memory/export_broker.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

bool ExportBroker::may_open(const RegisteredClient& importer, const RegisteredClient& exporter) const {
  const auto is_alone = [this](const RegisteredClient& client) {  // it belongs to no run, job, pod, container or unit
    const Tenant* tenant = tenants_.find(client.tenant);
    return tenant != nullptr && tenant->kind == "process" && client.pid != 0;
  };
  if (exporter.tenant == importer.tenant) return true;
  return exporter.uid == importer.uid && is_alone(exporter) && is_alone(importer);
}

void ExportBroker::import(const RegisteredClient& importer, const std::string& account, const Import& message, policy::Instant now) {
  const RegisteredClient* exporter = clients_.find(message.exporter);
  if (exporter == nullptr) return messenger_.send(importer, refusal(message.request, ExportStatus::kUnknown));
  if (!may_open(importer, *exporter)) {
    warnings_.warn_of(importer.lines_of, "refused import " + std::to_string(importer.id), now,
                      "client {} ({}, pid {}) asked for memory of client {} ({}, pid {}), which is of another tenant: refused", importer.id,
                      importer.program, importer.pid, exporter->id, exporter->program, exporter->pid);
    return messenger_.send(importer, refusal(message.request, ExportStatus::kRefused));
  }
  ExportWanted wanted{};
  wanted.ticket = exports_.ask({{importer.id, message.request}, exporter->id, message.export_id, account});
  if (wanted.ticket == 0) {
    warnings_.warn_of(importer.lines_of, "too many imports " + std::to_string(importer.id), now,
                      "client {} ({}, pid {}) has as many imports as it may, or named one twice: refused", importer.id, importer.program,
                      importer.pid);
    return messenger_.send(importer, refusal(message.request, ExportStatus::kFailed));
  }
  wanted.export_id = message.export_id;
  std::copy(std::begin(message.nonce), std::end(message.nonce), std::begin(wanted.nonce));
  messenger_.send(*exporter, wanted);
}

void ExportBroker::exported(const RegisteredClient& exporter, const Exported& message, Descriptors descriptors) {
  std::optional<Exports::Asked> asked = exports_.asked(message.ticket, exporter.id);
  if (!asked) return;  // the importer has gone, or has given up
  const bool is_ok = static_cast<ExportStatus>(message.status) == ExportStatus::kOk;
  const bool is_last = !is_ok || uint64_t{message.first} + static_cast<uint64_t>(descriptors.count()) >= message.chunks;
  if (is_last) exports_.answered(message.ticket, is_ok);
  Imported passed{asked->importer.request, message.bytes, message.chunk_bytes, message.chunks, message.first, message.status, {}};
  messenger_.send_to(asked->importer.client, passed, std::move(descriptors));
}

void ExportBroker::import_closed(const RegisteredClient& importer, const ImportClosed& message) {
  inherit(exports_.import_closed({importer.id, message.request}));
}

void ExportBroker::export_ended(const RegisteredClient& exporter, const ExportEnded& message) {
  inherit(exports_.export_ended(exporter.id, message.export_id));
}

void ExportBroker::inherit(const std::optional<ImportKey>& heir) {
  if (heir) messenger_.send_to(heir->client, ImportInherited{heir->request});
}

void ExportBroker::client_left(policy::ClientId client) {
  Exports::Departure departure = exports_.client_left(client);
  for (const ImportKey& import : departure.unanswered) {
    messenger_.send_to(import.client, refusal(import.request, ExportStatus::kUnknown));
  }
  for (const ImportKey& heir : departure.heirs) inherit(heir);
}

}  // namespace nvshare::scheduler
