// The DevicePlugin service of one resource, on a Unix socket of its own. gRPC's threads answer; what needs the kubelet's list goes through
// the clerk, so that no thread of the server ever waits for the kubelet.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "kubernetes/clerk.h"
#include "kubernetes/node.h"

namespace nvshare::kubernetes {

class ResourceServer {
 public:
  // `node` and `clerk` outlive it. Replaces a socket that lies at `path`.
  static Result<std::unique_ptr<ResourceServer>> serve(const std::string& path, Resource resource, Node& node, Clerk& clerk);
  ~ResourceServer();  // ends every call and removes the socket
  ResourceServer(const ResourceServer&) = delete;
  ResourceServer& operator=(const ResourceServer&) = delete;

  // Sends the list of devices as it is now to who watches. Any thread.
  void publish();
  // Who watches now. Any thread.
  int watchers() const;
  // Whether the socket that was made is still where it was made.
  bool reachable() const;

 private:
  class Service;
  ResourceServer();

  std::string path_;
  unsigned long long inode_ = 0;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes
