// What a process is told of its own tenants, and their turns that it ends: AskOwn. Nothing of other tenants is in the answer.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scheduler/engine.h"
#include "scheduler/reports.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

constexpr policy::Duration kQuestionsPeriod = 1'000'000'000;
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
  for (const auto& [id, client] : clients_.all()) {
    const Tenant* tenant = tenants_.find(client.tenant);
    if (client.uid == peer.uid && tenant != nullptr && !is_container(*tenant)) own.insert(client.tenant);
  }
  return own;
}

void Engine::answer_own(ConnectionId connection, const AskOwn& question, policy::Instant now) {
  const Peer& peer = connections_.at(connection).peer;
  if (now - own_questions_.since >= kQuestionsPeriod || own_questions_.asked.size() >= kAccountsMost) own_questions_ = {now, {}};
  if (++own_questions_.asked[peer.account] > bounds::kOwnQuestionsPerSecond)
    return refuse(connection, fmt::format("it asks too often; accepted: {} questions in a second", bounds::kOwnQuestionsPerSecond), now);
  const std::set<policy::TenantId> own = own_tenants(peer);
  if (static_cast<OwnWish>(question.wish) == OwnWish::kRelease) {
    const Tenant* tenant = own.contains(question.tenant) ? tenants_.find(question.tenant) : nullptr;
    if (tenant == nullptr) return refuse(connection, fmt::format("{} is no tenant of yours", question.tenant), now);
    release(*tenant, now);
  }
  const std::string line = admin::encode(own_report(parts(), peer.pid, own, now));
  Result<FileDescriptor> memory = sealed(line);
  if (!memory) return refuse(connection, memory.error().text, now);
  Descriptors descriptors;
  descriptors.add(std::move(*memory));
  transport_.send(connection, encode(OwnReport{line.size()}), std::move(descriptors));
  transport_.close(connection);
  connections_.erase(connection);
}

// As if it were paused and resumed at once: whoever runs is asked to end its turn.
void Engine::release(const Tenant& tenant, policy::Instant now) {
  if (tenant.clients == 0 || gets_no_turns(tenant)) return;
  spdlog::info("tenant {} '{}' gives up its turns", tenant.id, tenant.name);
  apply(policy::TenantSuspended{tenant.id, true}, now);
  apply(policy::TenantSuspended{tenant.id, false}, now);
}

}  // namespace nvshare::scheduler
