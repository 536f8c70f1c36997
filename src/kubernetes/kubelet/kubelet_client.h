// Calls to the kubelet: registering, and listing which container holds which devices. Each call has a connection of its own. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/kubelet/node.h"

namespace nvshare::kubernetes {

class KubeletClient {
 public:
  explicit KubeletClient(const Settings& settings);
  ~KubeletClient();
  KubeletClient(const KubeletClient&) = delete;
  KubeletClient& operator=(const KubeletClient&) = delete;

  // The kubelet calls our socket back before it answers, so that has to be served by other threads.
  Result<void> announce(const std::string& endpoint, const std::string& resource);

  Result<std::vector<HeldDevices>> list();

  // A sentence about resources that are not ours and have devices on one of these GPUs; nothing when there are none. An error where the
  // kubelet does not say (before 1.23, or while it starts).
  Result<std::optional<std::string>> served_by_others(const std::vector<std::string>& uuids);

  // Ends calls in progress, and every later one at once.
  void cancel();

 private:
  struct Calls;
  const Settings& settings_;
  std::unique_ptr<Calls> calls_;
};

// Whether the plugin that runs with these settings is alive, asked as the kubelet asks it: for devices that a container should get, of
// none. The answer passes its server, its worker and its allocations. An error says which of its resources does not answer within that
// time.
Result<void> probe_plugin(const Settings& settings, std::chrono::milliseconds patience);

// The name of our socket for a resource, inside the kubelet's folder.
std::string endpoint_of(const std::string& resource, const std::string& instance = "");

}  // namespace nvshare::kubernetes
