#include "scheduler/engine/own_questions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scheduler/bounds.h"

namespace nvshare::scheduler {
namespace {

constexpr policy::Duration kQuestionsPeriod = 1'000'000'000;
constexpr size_t kAccountsMost = 4096;  // of which questions are counted in a second

bool is_container(const Tenant& tenant) { return tenant.kind == "container" || tenant.kind == "pod"; }

}  // namespace

Result<void> OwnQuestions::asked(const std::string& account, policy::Instant now) {
  if (now - since_ >= kQuestionsPeriod || asked_.size() >= kAccountsMost) {
    since_ = now;
    asked_.clear();
  }
  if (++asked_[account] > bounds::kOwnQuestionsPerSecond)
    return error_format("it asks too often; accepted: %lld questions in a second", static_cast<long long>(bounds::kOwnQuestionsPerSecond));
  return {};
}

std::set<policy::TenantId> OwnQuestions::tenants_of(const Peer& peer) {
  std::set<policy::TenantId> own = {at_.tenants.ask(peer, {}).id};
  const bool is_outside = at_.tenants.cgroups.is_outside_containers(peer);
  // Last: it may have ended, and what was looked at may be another's that has its number.
  if (!is_outside || start_time_of(peer.pid) != peer.start_time) return own;
  for (const auto& [id, client] : at_.clients.all()) {
    const Tenant* tenant = at_.tenants.find(client.tenant);
    if (client.uid == peer.uid && tenant != nullptr && !is_container(*tenant)) own.insert(client.tenant);
  }
  return own;
}

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

}  // namespace nvshare::scheduler
