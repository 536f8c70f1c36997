// A kubelet for tests, as far as DRA drivers see one: finds their sockets, asks for their names, calls the version that it takes of theirs.
// No gRPC in this header. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/claim_driver.h"

namespace nvshare::kubernetes::dra {

class TestDraKubelet {
 public:
  // `folder` gets plugins_registry/ and plugins/gpu.nvshare.com/. `versions`: of the API that this kubelet knows, "v1.DRAPlugin" and
  // others.
  TestDraKubelet(const std::string& folder, std::vector<std::string> versions);
  ~TestDraKubelet();

  static std::string registration_socket(const std::string& folder);
  static std::string service_socket(const std::string& folder);

  // Looks for the driver's socket as a kubelet does that starts, of several for the newest, and registers it. Returns the version that it
  // calls from now on.
  Result<std::string> find_driver();

  struct Entry {
    std::vector<PreparedDevice> devices;
    std::string error;
    bool operator==(const Entry&) const = default;
  };
  using Entries = std::map<std::string, Entry>;  // by the claim's UID
  // It gives the call up after `patience`.
  Result<Entries> prepare(const std::vector<ClaimName>& claims, std::chrono::milliseconds patience = std::chrono::seconds(45));
  Result<Entries> unprepare(const std::vector<ClaimName>& claims);

  // Reads the devices' health until it is as wanted: "pool/device" to "healthy" or "unhealthy: why". An error: the driver has ended it.
  using Health = std::map<std::string, std::string>;
  Result<void> watch(const std::string& version, const std::function<bool(const Health&)>& until);

 private:
  Result<std::string> register_driver(const std::string& socket);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes::dra
