// What a process is told of its own tenants, and their turns that it ends: AskOwn. Nothing of other tenants is in the answer.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "policy/parts.h"
#include "scheduler/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

constexpr policy::Duration kSecond = 1'000'000'000;
constexpr size_t kAccountsMost = 4096;  // of which questions are counted in a second

bool is_container(const Tenant& tenant) { return tenant.kind == "container" || tenant.kind == "pod"; }

Result<FileDescriptor> sealed(const std::string& text) {
  FileDescriptor memory(memfd_create("nvshare-own", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return error_format("cannot make memory for the report: %s", std::strerror(errno));
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(memory.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return error_format("cannot write the report: %s", std::strerror(errno));
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return error_format("cannot seal the report: %s", std::strerror(errno));
  return memory;
}

}  // namespace

// The tenant that it belongs to; and, as long as it is in no container, those of the same user's programs outside containers.
std::set<policy::TenantId> Engine::own_tenants(const Peer& peer) {
  std::set<policy::TenantId> own = {tenants_.ask(peer, {}).id};
  if (!tenants_.cgroups.is_outside_containers(peer)) return own;
  for (const auto& [id, client] : clients_) {
    const Tenant* tenant = tenants_.find(client.tenant);
    if (client.uid == peer.uid && tenant != nullptr && !is_container(*tenant)) own.insert(client.tenant);
  }
  return own;
}

void Engine::answer_own(ConnectionId connection, const AskOwn& question, policy::Instant now) {
  const Peer& peer = connections_.at(connection).peer;
  if (now - own_questions_.since >= kSecond || own_questions_.asked.size() >= kAccountsMost) own_questions_ = {now, {}};
  if (++own_questions_.asked[peer.account] > bounds::kOwnQuestionsPerSecond)
    return refuse(connection, fmt::format("it asks too often; accepted: {} questions in a second", bounds::kOwnQuestionsPerSecond), now);
  const std::set<policy::TenantId> own = own_tenants(peer);
  if (static_cast<OwnWish>(question.wish) == OwnWish::kRelease) {
    const Tenant* tenant = own.contains(question.tenant) ? tenants_.find(question.tenant) : nullptr;
    if (tenant == nullptr) return refuse(connection, fmt::format("{} is no tenant of yours", question.tenant), now);
    release(*tenant, now);
  }
  const std::string line = admin::encode(own_report(peer, own, now));
  Result<FileDescriptor> memory = sealed(line);
  if (!memory) return refuse(connection, memory.error().text, now);
  Descriptors descriptors;
  descriptors.add(std::move(*memory));
  transport_.send(connection, encode(OwnReport{line.size()}), std::move(descriptors));
  transport_.close(connection);
  connections_.erase(connection);
}

admin::StatusReport Engine::own_report(const Peer& peer, const std::set<policy::TenantId>& own, policy::Instant now) const {
  admin::StatusReport report;
  report.own = true;
  report.version = NVSHARE_VERSION;
  report.runtime_dir = settings_.runtime_dir;
  report.epoch = epoch_;
  report.uptime_ns = now - started_;
  std::map<policy::GpuId, policy::GpuView> views;  // with their own clients alone
  for (const auto& [id, client] : clients_) {
    if (!own.contains(client.tenant)) continue;
    const auto view = policy::view_of_client(*state_, id, now);
    if (view) views[client.gpu].clients.push_back(view->clients.front());
  }
  for (const policy::TenantId id : own) {
    const Tenant* tenant = tenants_.find(id);
    if (tenant == nullptr || (tenant->clients == 0 && tenant->root == 0)) continue;
    admin::TenantReport& out = report.tenants.emplace_back();
    out.id = id;
    out.name = tenant->name;
    out.kind = tenant->kind;
    out.gpu_memory_limit = tenant->memory_limit_in_force();
    out.gpu_core_limit = tenant->core_limit_in_force();
    out.gpu_core_reserved = tenant->core_reserved_in_force();
    out.priority = tenant->priority_in_force();
    out.ends = tenant->pod.ends;
    out.paused = tenant->paused_in_force();
    out.sharing = tenant->sharing_in_force();
    out.turn_most_ns = tenant->turns_in_force().most;
    out.clients = tenant->clients;
    out.clients_ever = tenant->clients_ever;
    out.root = tenant->root != 0 ? pid_as_seen_by(peer.pid, tenant->root) : 0;
  }
  const ReportsOfTenants reports = by_tenant(&report);
  for (auto& [id, view] : views) {
    view.gpu = id;
    admin::GpuReport& out = report.gpus.emplace_back();
    out.uuid = gpus_[id].uuid_text;
    out.name = gpus_[id].name;
    out.total = out.real_total = gpus_[id].total;
    out.compute_mode = "unlimited";
    for (const policy::ClientView& client : view.clients) {
      admin::ClientReport& said = report.clients.emplace_back(report_of(client, out.uuid, now));
      said.pid = pid_as_seen_by(peer.pid, clients_.at(client.client).pid);
      // In the policy's words, which know no names.
      said.waiting_for = client.waiting_for;
    }
    report_usage(view, reports);
  }
  report_limits(reports);
  return report;
}

// As if it were paused and resumed at once: whoever runs is asked to end its turn.
void Engine::release(const Tenant& tenant, policy::Instant now) {
  if (tenant.clients == 0 || gets_no_turns(tenant)) return;
  spdlog::info("tenant {} '{}' gives up its turns", tenant.id, tenant.name);
  apply(policy::TenantPaused{tenant.id, true}, now);
  apply(policy::TenantPaused{tenant.id, false}, now);
}

}  // namespace nvshare::scheduler
