// The device plugin put together: servers, clerk, registrar, health. One object in a process (a test may have several).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include "kubernetes/clerk.h"
#include "kubernetes/gpus.h"
#include "kubernetes/kubelet_link.h"
#include "kubernetes/node.h"
#include "kubernetes/registrar.h"
#include "kubernetes/resource_server.h"

namespace nvshare::kubernetes {

class Plugin {
 public:
  // Starts threads; from now on the plugin registers itself whenever there is a kubelet.
  Plugin(const Settings& settings, std::unique_ptr<Node> node);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  Node& node() { return *node_; }
  // A GPU's health, as NVML (or a test) sees it. Any thread.
  void set_health(const std::string& uuid, bool healthy);
  int announcements() const { return registrar_->announcements(); }

 private:
  bool serving();
  Result<void> serve();
  Result<void> announce();
  bool heard();

  const std::unique_ptr<Node> node_;
  KubeletLink kubelet_;
  Clerk clerk_;
  std::mutex mutex_;
  std::map<Resource, std::unique_ptr<ResourceServer>> servers_;  // guarded by mutex_
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<HealthWatch> health_;
};

}  // namespace nvshare::kubernetes
