// The device plugin put together: servers, worker, registrar, health. One object in a process (a test may have several).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "kubernetes/devices/gpus.h"
#include "kubernetes/kubelet/allocation_worker.h"
#include "kubernetes/kubelet/device_plugin_server.h"
#include "kubernetes/kubelet/kubelet_client.h"
#include "kubernetes/kubelet/node.h"
#include "kubernetes/kubelet/registrar.h"

namespace nvshare::kubernetes {

class Plugin {
 public:
  // Why this plugin must not serve here. Called once, on a thread of the plugin; nothing is registered from then on.
  using Unwanted = std::function<void(const std::string& why)>;
  // Starts threads; from now on the plugin registers itself whenever there is a kubelet.
  Plugin(const Settings& settings, std::unique_ptr<Node> node, Unwanted unwanted = {});
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  Node& node() { return *node_; }
  // A GPU's health, as NVML (or a test) sees it. Any thread.
  void set_health(const Gpu& gpu, bool healthy, const std::string& why = "a test says so");
  int announcements() const { return registrar_->announcements(); }

 private:
  bool serving();
  Result<void> serve();
  Result<void> announce();
  bool heard();
  bool is_anothers(std::string_view socket) const;
  Result<void> look_for_others();

  const std::unique_ptr<Node> node_;
  KubeletClient kubelet_;
  const Unwanted unwanted_;
  bool is_unwanted_ = false;                  // of the registrar's thread, as the next one
  bool cannot_see_others_ = false;            // was logged
  bool record_is_read_ = false;               // of the registrar's thread: as it was right before the first registration
  std::atomic<bool> containers_come_{false};  // since others were looked for
  AllocationWorker worker_;
  Mutex mutex_;
  std::map<Resource, std::unique_ptr<DevicePluginServer>> servers_ GUARDED_BY(mutex_);
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<HealthWatch> health_;
};

}  // namespace nvshare::kubernetes
