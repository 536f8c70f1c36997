#include "kubernetes/kubelet/plugin.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace nvshare::kubernetes {

Plugin::Plugin(const Settings& settings, std::unique_ptr<Node> node, Unwanted unwanted)
    : node_(std::move(node)), kubelet_(node_->settings()), unwanted_(std::move(unwanted)), worker_(*node_, [this] {
        containers_come_ = true;
        return kubelet_.list();
      }) {
  registrar_ = std::make_unique<Registrar>(
      settings.kubelet_dir, Registrar::Hooks{[this] { return serving(); }, [this] { return serve(); }, [this] { return announce(); },
                                             [this] { return heard(); }, [this](std::string_view name) { return is_anothers(name); }});
  health_ = std::make_unique<HealthWatch>(
      HealthWatch::Options{node_->gpus(), std::chrono::nanoseconds(settings.health_interval), settings.runtime_dir,
                           std::chrono::nanoseconds(settings.scheduler_patience), node_->listener().noticed},
      [this](const Gpu& gpu, bool healthy, const std::string& why) { set_health(gpu, healthy, why); });
}

Plugin::~Plugin() {
  health_.reset();
  kubelet_.cancel();
  registrar_->stop();
  Lock lock(mutex_);
  servers_.clear();
}

void Plugin::set_health(const Gpu& gpu, bool healthy, const std::string& why) {
  if (!node_->set_health(gpu.uuid, healthy)) return;
  if (healthy) {
    spdlog::info("{} is healthy again", shown(gpu));
  } else {
    spdlog::error("{} is unhealthy: {}", shown(gpu), why);
  }
  Lock lock(mutex_);
  for (const auto& [resource, server] : servers_) server->publish();
}

bool Plugin::serving() {
  Lock lock(mutex_);
  return !servers_.empty() && std::all_of(servers_.begin(), servers_.end(), [](const auto& one) { return one.second->reachable(); });
}

Result<void> Plugin::serve() {
  Lock lock(mutex_);
  // All at once: a kubelet that deleted one socket deletes them all. First the old ones go, because each removes what lies at its path.
  servers_.clear();
  for (Resource resource : node_->resources()) {
    std::string path = node_->settings().kubelet_dir + "/" + endpoint_of(node_->name_of(resource), node_->settings().instance);
    Result<std::unique_ptr<DevicePluginServer>> server = DevicePluginServer::serve(path, resource, *node_, worker_);
    if (!server) {
      servers_.clear();
      return server.error();
    }
    servers_.emplace(resource, std::move(*server));
  }
  return {};
}

// Before each registration: the others may have come while the kubelet was away. And soon after containers come: a plugin that serves the
// same GPUs is of no harm before.
Result<void> Plugin::look_for_others() {
  if (!node_->settings().refuse_other_plugins) return {};
  if (is_unwanted_) return error_format("another device plugin serves the same GPUs");
  std::vector<std::string> uuids;
  for (const GpuLoad& load : node_->loads()) uuids.push_back(load.uuid);
  Result<std::optional<std::string>> others = kubelet_.served_by_others(uuids);
  if (!others) {
    if (!std::exchange(cannot_see_others_, true)) spdlog::info("whether others serve these GPUs is not known: {}", others.error().text);
    return {};
  }
  if (!*others) return {};
  is_unwanted_ = true;
  if (unwanted_) unwanted_(**others);
  return error_format("another device plugin serves the same GPUs");
}

Result<void> Plugin::announce() {
  if (auto ok = look_for_others(); !ok) return ok;
  // An instance before this one went on granting since this one read its record; from the first registration on it is not asked any more.
  if (!std::exchange(record_is_read_, true)) node_->read_record();
  for (Resource resource : node_->resources()) {
    const std::string& name = node_->name_of(resource);
    if (auto ok = kubelet_.announce(endpoint_of(name, node_->settings().instance), name); !ok) return ok;
    spdlog::info("registered {}: {} devices", name, node_->devices(resource).size());
  }
  return {};
}

bool Plugin::is_anothers(std::string_view socket) const {
  bool is_of_resource = false;
  for (Resource resource : node_->resources()) {
    const std::string& name = node_->name_of(resource);
    if (socket == endpoint_of(name, node_->settings().instance)) return false;
    const std::string plain = endpoint_of(name);
    is_of_resource = is_of_resource || (socket.starts_with(plain.substr(0, plain.size() - 5)) && socket.ends_with(".sock"));
  }
  return is_of_resource;
}

bool Plugin::heard() {
  if (containers_come_.exchange(false)) (void)look_for_others();  // it reports another plugin
  Lock lock(mutex_);
  return std::all_of(servers_.begin(), servers_.end(), [](const auto& one) { return one.second->watchers() > 0; });
}

}  // namespace nvshare::kubernetes
