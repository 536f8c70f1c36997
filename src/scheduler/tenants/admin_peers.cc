#include "scheduler/tenants/admin_peers.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {
namespace {

constexpr std::string_view kNumbers = "\nNSpid:";

// NSpid lists a process's numbers from the namespace of whoever reads it down to its own.
bool is_in_namespace_below(std::string_view status) {
  const size_t at = status.find(kNumbers);
  if (at == std::string_view::npos) return false;  // a kernel without PID namespaces
  const std::string_view rest = status.substr(at + kNumbers.size());
  std::istringstream numbers(std::string(rest.substr(0, rest.find('\n'))));
  int count = 0;
  for (pid_t number = 0; numbers >> number;) ++count;
  return count != 1;
}

}  // namespace

bool may_administer(const CgroupReader& reader, std::string_view cgroups, std::string_view status) {
  if (status.empty() || cgroups == kUnreadableCgroups || !reader.may_administer(cgroups)) return false;
  if (!is_in_namespace_below(status)) return true;
  const auto identity = reader.identify(cgroups);
  return identity && (identity->kind == CgroupIdentity::Kind::kContainer || identity->kind == CgroupIdentity::Kind::kPod);
}

Result<void> AdminPeers::may_administer(int socket) {
  Result<Peer> peer = peer_of(socket);
  if (!peer) return peer.error();
  if (peer->uid != 0 && peer->uid != geteuid()) return error_format("admin requests are for root and user %u", geteuid());
  const std::string cgroups = cgroups_of(peer->pid);
  const std::string status = status_text_of(peer->pid);
  if (has_ended(peer->pidfd)) return error_format("process %d has ended", peer->pid);  // what was read may be another's
  if (std::string own = cgroups_of(getpid()); own != own_cgroups_) {
    reader_ = CgroupReader::here();
    own_cgroups_ = std::move(own);
  }
  if (!scheduler::may_administer(reader_, cgroups, status)) return error_format("admin requests are not for containers");
  return {};
}

Result<void> is_outside_containers(pid_t pid, std::string_view status) {
  if (may_administer(CgroupReader::here(), cgroups_of(pid), status)) return {};
  return error_format("process %d is in a container", pid);
}

std::string status_text_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace nvshare::scheduler
