// The DevicePlugin service of one resource, on a Unix socket of its own. gRPC's threads answer; what needs the kubelet's list goes through
// the worker, so that no thread of the server ever waits for the kubelet.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "kubernetes/kubelet/allocation_worker.h"
#include "kubernetes/kubelet/node.h"

namespace nvshare::kubernetes {

class DevicePluginServer {
 public:
  // `node` and `worker` outlive it. Replaces a socket that lies at `path`.
  static Result<std::unique_ptr<DevicePluginServer>> serve(const std::string& path, Resource resource, Node& node,
                                                           AllocationWorker& worker);
  ~DevicePluginServer();  // ends every call and removes the socket
  DevicePluginServer(const DevicePluginServer&) = delete;
  DevicePluginServer& operator=(const DevicePluginServer&) = delete;

  // Sends the list of devices as it is now to all calls that watch. Any thread.
  void publish();
  // How many calls watch now. Any thread.
  int watchers() const;
  // Whether the socket that was made is still where it was made.
  bool reachable() const;

 private:
  class Service;
  DevicePluginServer();

  std::string path_;
  unsigned long long inode_ = 0;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes
