// Files that the daemons leave their successors: any content is refused with a reason or read as far as it is understood, and what was read
// is written and read again as it was. Input: a digit that names the file, then its content.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz.h"
#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/pods/pod_allocations.h"
#include "pods.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/log.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/tenants/tenants.h"
#include "scheduler/tenants/waiting_requests.h"

namespace {

using namespace nvshare;
using fuzz::require;

// A folder of this process's; gone at the end.
class Folder {
 public:
  Folder() : path_("/dev/shm/nvshare-fuzz-" + std::to_string(getpid())) { std::filesystem::create_directories(path_ + "/jobs"); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const char* name, std::string_view content) const {
    std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary | std::ios::trunc).write(content.data(), static_cast<std::streamsize>(content.size()));
    std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return file;
  }
  std::string read(const char* name) const {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const Folder& folder() {
  static const Folder made;
  return made;
}

scheduler::Tenants tenants_of(const std::string& file) {
  return scheduler::Tenants(file, [](pid_t) { return std::string("0::/\n"); });
}

// What was read of `file` is possible, and is written and read again as it was.
void check_tenants(const std::string& file) {
  scheduler::Tenants read = tenants_of(file);
  if (!read.problem().empty()) require(read.problem().find('\n') == std::string::npos, "a problem is one line");
  for (const auto& [key, tenant] : read.all()) {
    require(tenant.id != 0, "a tenant has an id");
    require(tenant.core_limit_in_force() >= 1 && tenant.core_limit_in_force() <= 100, "a compute limit is 1 to 100");
    require(tenant.core_reserved_in_force() >= 0 && tenant.core_reserved_in_force() <= 100, "a reservation is 0 to 100");
    require(tenant.memory_limit_in_force() >= 0, "a memory limit is not negative");
    for (const auto& [other, same] : read.all()) require(key == other || tenant.id != same.id, "an id is of one tenant");
  }
  read.save();
  const std::string written = folder().read("tenants");
  scheduler::Tenants again = tenants_of(file);
  require(again.problem().empty(), "what was written is read again");
  again.save();
  require(folder().read("tenants") == written, "and says the same");
  scheduler::Peer peer;
  peer.pid = getpid();
  peer.start_time = scheduler::start_time_of(peer.pid);
  const policy::TenantId id = again.join(peer, "program").id;
  require(id != 0, "a tenant that comes has an id");
  int of_that_id = 0;
  for (const auto& [key, tenant] : again.all()) of_that_id += tenant.id == id ? 1 : 0;
  require(of_that_id == 1, "and nobody else's");
}

void try_tenants(std::string_view content) { check_tenants(folder().write("tenants", content)); }

// Lines behind a file of one tenant.
void try_changes(std::string_view content) {
  const std::string file = folder().write("tenants", "");
  std::filesystem::remove(file);
  std::string changes, whole;
  {
    scheduler::Tenants written = tenants_of(file);
    const auto id = written.add_run(getpid(), "train", 0);
    require(fuzz::good(id), "a run is added");
    written.find(*id)->core_limit = 40;
    written.save_changes(*id);
    changes = folder().read("tenants.changes");
    whole = folder().read("tenants");
  }
  folder().write("tenants", whole);
  require(changes.find("\"core_limit\": 40") != std::string::npos, "a change is appended");
  folder().write("tenants.changes", changes.substr(0, changes.find('\n') + 1).append(content));
  check_tenants(file);
}

void try_clients(std::string_view content) {
  const std::string file = folder().write("clients", content);
  scheduler::KnownClients known(file);
  std::map<policy::ClientId, bool> given;
  for (const auto& [id, client] : known.missing()) {
    require(id != 0 && client.lease >= 0 && client.own_limit >= 0 && client.charged >= 0, "a client that is known is possible");
    given[id] = true;
  }
  for (int i = 0; i < 3; ++i) {
    const policy::ClientId id = known.join(0, {getpid(), 1, 1, "GPU-1", 0, 0, 0});
    require(id != 0 && !given[id], "an id is given once");
    given[id] = true;
    known.keep_lease(id, int64_t{1} << 50, 1);
  }
}

void try_limits(std::string_view content) {
  kubernetes::PodLimits limits(5);
  const auto left_out = limits.restore(std::string(content));
  if (!fuzz::good(left_out)) return;
  fuzz::require_sendable(limits.all());
  kubernetes::PodLimits again(5);
  const auto nothing = again.restore(limits.record());
  require(fuzz::good(nothing) && nothing->empty() && again.record() == limits.record(), "limits.json is read again as it was");
}

void try_pod_grants(std::string_view content) {
  kubernetes::PodAllocations grants{{}};
  const auto left_out = grants.restore(std::string(content));
  if (!fuzz::good(left_out)) return;
  std::vector<protocol::admin::PodRequest> limits;
  for (const auto& [uid, pod] : grants.pods()) limits.push_back(kubernetes::limits_with(nullptr, &pod.allocation, uid, pod.name));
  fuzz::require_sendable(limits);
  kubernetes::PodAllocations again{{}};
  const auto nothing = again.restore(grants.record());
  require(fuzz::good(nothing) && nothing->empty() && again.record() == grants.record(), "pod-grants.json is read again as it was");
}

void try_grants(std::string_view content) {
  const std::vector<kubernetes::Gpu> gpus = {{"GPU-a", int64_t{16} << 30, true}, {"GPU-b", int64_t{16} << 30, false}};
  kubernetes::DeviceAllocations allocations({}, gpus);
  if (!fuzz::good(allocations.restore(std::string(content)))) return;
  const std::vector<std::string> ids = {"GPU-a::0"};
  for (const kubernetes::GpuLoad& load : allocations.loads())
    require(load.bytes_granted >= 0 && load.core_granted >= 0, "a load is not negative");
  kubernetes::DeviceAllocations again({}, gpus);
  require(fuzz::good(again.restore(allocations.record())) && again.record() == allocations.record(), "grants.json is read again as it was");
  allocations.update({{"team", "train", "main", {ids[0]}, {"memory-00000"}, {}}});
  const auto admission = allocations.admit(kubernetes::Resource::kGpu, ids);
  require(admission.kind != kubernetes::Admission::Kind::kNotListed, "a listed container is known");
}

void try_job(std::string_view content) {
  folder().write("jobs/1", content);
  const scheduler::WaitingRequests taken = scheduler::take_waiting_requests(folder().path() + "/jobs");
  require(taken.requests.size() + taken.problems.size() == 1, "a request that waited is taken or refused");
  require(!std::filesystem::exists(folder().path() + "/jobs/1"), "and is gone");
  scheduler::Tenants tenants([](pid_t) { return std::string("0::/\n"); });
  for (const auto& request : taken.requests) static_cast<void>(fuzz::good(tenants.add_job(request)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  scheduler::set_log_level("off");
  std::string_view text = fuzz::text_of(data, size);
  switch (fuzz::take_byte(&text)) {
    case '0':
      try_tenants(text);
      break;
    case '1':
      try_clients(text);
      break;
    case '2':
      try_limits(text);
      break;
    case '3':
      try_pod_grants(text);
      break;
    case '4':
      try_grants(text);
      break;
    case '5':
      try_job(text);
      break;
    case '6':
      try_changes(text);
      break;
    default:
      break;
  }
  return 0;
}
