#include <string>
#include <utility>

#include "protocol/admin.h"
#include "protocol/report_fields.h"

namespace nvshare::protocol::admin {

struct StatusText::Parts {
  explicit Parts(bool brief) : text(line, brief) {}

  std::string line;
  JsonText text;  // into it
};

StatusText::StatusText(bool brief, size_t bytes) : brief_(brief), parts_(std::make_unique<Parts>(brief)) {
  parts_->line.reserve(bytes);
  parts_->text.open();
  parts_->text.field("\"ok\":", true);
}
StatusText::StatusText(StatusText&&) noexcept = default;
StatusText::~StatusText() = default;

void StatusText::add(std::span<const ClientReport> clients) {
  if (clients.empty()) return;
  if (clients_ == 0) parts_->text.open_list("\"clients\":");
  for (const ClientReport& client : clients) parts_->text.row(client);
  clients_ += clients.size();
}

void StatusText::end_clients() {
  if (clients_ == 0 && !brief_) parts_->text.open_list("\"clients\":");
  if (clients_ > 0 || !brief_) parts_->text.close_list();
}

void StatusText::add(std::span<const TenantReport> tenants) {
  if (tenants.empty()) return;
  if (tenants_ == 0) {
    end_clients();
    parts_->text.open_list("\"tenants\":");
  }
  for (const TenantReport& tenant : tenants) parts_->text.row(tenant);
  tenants_ += tenants.size();
}

std::string StatusText::finish(const StatusReport& report) {
  JsonText& text = parts_->text;
  if (tenants_ == 0) add(std::span(report.clients).subspan(clients_));
  add(std::span(report.tenants).subspan(tenants_));
  if (tenants_ == 0) {
    end_clients();
    if (!brief_) text.open_list("\"tenants\":");
  }
  if (tenants_ > 0 || !brief_) text.close_list();
  each_field(report, text);
  text.close();
  text.pass_on();
  parts_->line += "\n";
  return std::move(parts_->line);
}

std::string encode(const StatusReport& report, bool brief) {
  const size_t bytes_of_one = brief ? 700 : 1500;  // about, of a client or a tenant
  return StatusText(brief, (report.clients.size() + report.tenants.size() + report.gpus.size() + 2) * bytes_of_one).finish(report);
}

}  // namespace nvshare::protocol::admin
