// The services that the kubelet calls: registration on a socket in its folder of plugins, v1 and v1beta1 of the DRA API and v1 and v1alpha1
// of the devices' health on another.
// No gRPC in this header.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "kubernetes/dra/claim_driver.h"

namespace nvshare::kubernetes::dra {

class DraServer {
 public:
  struct Sockets {
    std::string registration;  // "/var/lib/kubelet/plugins_registry/gpu.nvshare.com-reg.sock"
    std::string service;       // "/var/lib/kubelet/plugins/gpu.nvshare.com/dra.sock"
  };
  // `driver` outlives it. Replaces sockets that lie there. The folders are the kubelet's and the caller's to make.
  static Result<std::unique_ptr<DraServer>> serve(const Sockets& sockets, ClaimDriver& driver);
  ~DraServer();  // ends every call and removes the sockets
  DraServer(const DraServer&) = delete;
  DraServer& operator=(const DraServer&) = delete;

  // Whether a driver answers on this socket for registration.
  static Result<void> probe(const std::string& registration, std::chrono::milliseconds patience);

  // What whoever watches the devices' health is told; nothing before the first call. Any thread.
  void set_health(const std::string& pool, const DeviceModels& devices);

  // Whether the kubelet has said so, and of which of our instances it did last is its own affair.
  bool registered() const;

 private:
  struct Parts;
  DraServer();
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes::dra
