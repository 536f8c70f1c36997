#include "kubernetes/kubelet/node.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

#include "kubernetes/devices/preference.h"
#include "kubernetes/files.h"
#include "kubernetes/kubelet/init_containers.h"

namespace nvshare::kubernetes {
namespace {

// One message to the kubelet holds at most 4 MB; a device takes some 30 bytes of it.
constexpr int64_t kDevicesMax = 100'000;

}  // namespace

Node::Node(const Settings& settings, InstalledFiles files, std::vector<Gpu> gpus)
    : settings_(settings), files_(std::move(files)), allocations_(settings.division, std::move(gpus)), cdi_(settings_, files_) {}

Result<std::unique_ptr<Node>> Node::open(const Settings& settings, InstalledFiles files, std::vector<Gpu> gpus) {
  int64_t units = 0;
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.uuid < b.uuid; });
  for (const Gpu& gpu : gpus) {
    int64_t count = units_of(Resource::kMemory, gpu, settings.division);
    if (count == 0 && !settings.memory_resource.empty()) {
      return error_format("%.100s has less memory than one unit of %s", shown(gpu).c_str(),
                          limit_text(settings.division.memory_unit).c_str());
    }
    units += count;
  }
  if (units > kDevicesMax && !settings.memory_resource.empty()) {
    return error_format("%lld units of memory are more than a kubelet's messages hold (%lld); choose a larger %s",
                        static_cast<long long>(units), static_cast<long long>(kDevicesMax),
                        settings::variable_of("gpu_memory_unit").c_str());
  }
  std::unique_ptr<Node> node(new Node(settings, std::move(files), std::move(gpus)));
  node->read_record();
  return node;
}

void Node::read_record() {
  Lock lock(mutex_);
  const std::string path = record_file();
  if (access(path.c_str(), F_OK) != 0) return;
  auto record = read_file(path);
  // A record that cannot be read is as none: each container that holds devices counts, and is looked at again when it next starts.
  const Result<void> ok = record ? allocations_.restore(*record) : Result<void>(record.error());
  if (!ok) spdlog::warn("{}: {}", path, ok.error().text);
  init_containers_ = allocations_.init_containers();
}

std::vector<Resource> Node::resources() const {
  std::vector<Resource> all = {Resource::kGpu};
  if (!settings_.memory_resource.empty()) all.push_back(Resource::kMemory);
  if (!settings_.core_resource.empty()) all.push_back(Resource::kCore);
  return all;
}

const std::string& Node::name_of(Resource resource) const {
  switch (resource) {
    case Resource::kGpu:
      return settings_.gpu_resource;
    case Resource::kMemory:
      return settings_.memory_resource;
    case Resource::kCore:
      break;
  }
  return settings_.core_resource;
}

std::vector<Device> Node::devices(Resource resource) const {
  Lock lock(mutex_);
  if (resource == Resource::kGpu) return virtual_gpus(allocations_.gpus(), settings_.division);
  return units(resource, allocations_.gpus(), settings_.division, allocations_.in_use(resource));
}

std::vector<std::string> Node::prefer(Resource resource, std::vector<std::string> available, const std::vector<std::string>& must,
                                      int size) const {
  if (resource != Resource::kGpu) return prefer_units(std::move(available), must, size);
  return prefer_gpus(loads(), available, must, size);
}

Result<ContainerEdits> Node::allocate(Resource resource, const std::vector<std::string>& ids) {
  if (ids.empty()) return error_format("%.200s: a container asks for none of it", name_of(resource).c_str());
  Lock lock(mutex_);
  switch (resource) {
    case Resource::kGpu: {
      std::vector<std::string> uuids = distinct_gpus(ids);
      for (const std::string& id : ids) {
        auto uuid = gpu_of(id);
        bool known =
            uuid && std::any_of(allocations_.gpus().begin(), allocations_.gpus().end(), [&](const Gpu& gpu) { return gpu.uuid == *uuid; });
        if (!known) return error_format("'%.120s' is no virtual GPU of this node", id.c_str());
      }
      if (settings_.cdi != Cdi::kOff) {
        if (auto ok = cdi_.describe_gpus({uuids}); !ok) return ok.error();
      }
      return gpu_edits(settings_, files_, ids);
    }
    case Resource::kMemory: {
      auto units = static_cast<int64_t>(ids.size());
      if (settings_.cdi != Cdi::kOff) {
        if (auto ok = cdi_.describe_memory({limit_text(units * settings_.division.memory_unit)}); !ok) return ok.error();
      }
      return memory_edits(settings_, units);
    }
    case Resource::kCore:
      break;
  }
  return ContainerEdits{};
}

Admission Node::admit(Resource resource, const std::vector<std::string>& ids) {
  Lock lock(mutex_);
  if (!allocations_.lists_exactly(resource, ids)) {
    const std::optional<Checkpoint> known = checkpoint();
    if (auto init = known ? init_container_with(*known, resource, ids, allocations_.listed()) : std::nullopt) {
      init_containers_.push_back(*init);
      allocations_.add_init(std::move(*init));
    }
  }
  Admission admission = allocations_.admit(resource, ids);
  if (admission.changed) save_record();
  return admission;
}

void Node::update(std::vector<HeldDevices> listed) {
  if (listener_.updated) listener_.updated(listed);
  Lock lock(mutex_);
  if (!init_containers_.empty()) {
    const std::optional<Checkpoint> known = checkpoint();
    if (known) std::erase_if(init_containers_, [&](const HeldDevices& init) { return !is_there(*known, init); });
    listed.insert(listed.end(), init_containers_.begin(), init_containers_.end());
  }
  if (allocations_.update(std::move(listed))) save_record();
  if (settings_.cdi == Cdi::kOff) return;
  // /var/run does not outlive a restart of the machine; what containers were given does.
  std::vector<std::vector<std::string>> gpus;
  std::vector<std::string> limits;
  for (const HeldDevices& held : allocations_.listed()) {
    gpus.push_back(distinct_gpus({held.gpus.begin(), held.gpus.end()}));
    if (!held.memory.empty()) limits.push_back(limit_text(static_cast<int64_t>(held.memory.size()) * allocations_.memory_unit_of(held)));
  }
  for (const Gpu& gpu : allocations_.gpus()) gpus.push_back({gpu.uuid});
  for (const auto& ok : {cdi_.describe_gpus(gpus), cdi_.describe_memory(limits)}) {
    if (!ok) spdlog::error("containers that use CDI cannot start: {}", ok.error().text);
  }
}

// The kubelet has written it before it starts a container. Nothing: it cannot be read, which the checkpoint's watch logs.
std::optional<Checkpoint> Node::checkpoint() const {
  const auto text = read_file(settings_.kubelet_dir + "/" + kCheckpointName);
  if (!text) return std::nullopt;
  auto read = read_checkpoint(*text, {settings_.gpu_resource, settings_.memory_resource, settings_.core_resource, settings_.division});
  return read ? std::optional(std::move(*read)) : std::nullopt;
}

bool Node::set_health(const std::string& uuid, bool healthy) {
  Lock lock(mutex_);
  std::vector<Gpu> gpus = allocations_.gpus();
  auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& one) { return one.uuid == uuid; });
  if (gpu == gpus.end() || gpu->healthy == healthy) return false;
  gpu->healthy = healthy;
  allocations_.set_gpus(std::move(gpus));
  return true;
}

std::vector<Gpu> Node::gpus() const {
  Lock lock(mutex_);
  return allocations_.gpus();
}

std::vector<GpuLoad> Node::loads() const {
  Lock lock(mutex_);
  return allocations_.loads();
}

// A grant that cannot be written down is given all the same: at worst, containers that hold devices are looked at again after a restart.
void Node::save_record() {
  if (auto ok = write_file_atomically(record_file(), allocations_.record()); !ok) spdlog::warn("{}", ok.error().text);
}

}  // namespace nvshare::kubernetes
