// What this node offers and what it has given, for all threads: one mutex around the allocations. Nothing here waits for anything but the
// disk.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/devices/cdi.h"
#include "kubernetes/devices/container_edits.h"
#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/pods/checkpoint.h"
#include "kubernetes/settings.h"
#include "protocol/admin.h"

namespace nvshare::kubernetes {

class Node {
 public:
  // Reads the record of what was granted before a restart, <install_dir>/grants.json.
  static Result<std::unique_ptr<Node>> open(const Settings& settings, InstalledFiles files, std::vector<Gpu> gpus);

  std::vector<Resource> resources() const;
  const std::string& name_of(Resource resource) const;
  const Settings& settings() const { return settings_; }

  std::vector<Device> devices(Resource resource) const;
  std::vector<std::string> prefer(Resource resource, std::vector<std::string> available, const std::vector<std::string>& must,
                                  int size) const;
  Result<ContainerEdits> allocate(Resource resource, const std::vector<std::string>& ids);
  Admission admit(Resource resource, const std::vector<std::string>& ids);

  // The kubelet's list of containers and their devices.
  void update(std::vector<HeldDevices> listed);
  // Called with each update, on its thread, without a lock. `incomplete`: a listener waits for another one. Both may be called at
  // any time from then on. Set before any thread knows the node.
  struct Listener {
    std::function<void(const std::vector<HeldDevices>&)> updated;
    std::function<bool()> incomplete;
    // What the scheduler has to say of pods; on the health watch's thread.
    std::function<void(const std::vector<protocol::admin::PodNotice>&)> noticed;
  };
  void listen(Listener listener) { listener_ = std::move(listener); }
  const Listener& listener() const { return listener_; }
  // What was granted, as another plugin has written it meanwhile. Before anything is granted here.
  void read_record();
  bool incomplete() const { return listener_.incomplete && listener_.incomplete(); }
  // True: it was otherwise before.
  bool set_health(const std::string& uuid, bool healthy);
  std::vector<Gpu> gpus() const;
  std::vector<GpuLoad> loads() const;

 private:
  Node(const Settings& settings, InstalledFiles files, std::vector<Gpu> gpus);
  void save_record() REQUIRES(mutex_);
  std::optional<Checkpoint> checkpoint() const;
  std::string record_file() const { return settings_.install_dir + "/grants.json"; }

  const Settings settings_;
  const InstalledFiles files_;
  Listener listener_;
  mutable Mutex mutex_;
  DeviceAllocations allocations_ GUARDED_BY(mutex_);
  CdiSpecs cdi_ GUARDED_BY(mutex_);
  std::vector<HeldDevices> init_containers_ GUARDED_BY(mutex_);  // that started, until their pod is gone
};

}  // namespace nvshare::kubernetes
