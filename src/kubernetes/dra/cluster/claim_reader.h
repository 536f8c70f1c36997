// Reads ResourceClaims from the API server: several at a time, each call on its caller's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/dra/claim.h"
#include "kubernetes/pods/api_server.h"

namespace nvshare::kubernetes::dra {

class ClaimReader {
 public:
  explicit ClaimReader(ApiServerAddress address) : address_(std::move(address)) {}

  // The object as JSON; `name` was checked (check_name). Any thread.
  Result<std::string> read(const ClaimName& name);
  // Calls that are under way, and all later ones, fail at once. Any thread.
  void interrupt();

 private:
  std::unique_ptr<ApiServer> take();
  void put_back(std::unique_ptr<ApiServer> server);

  const ApiServerAddress address_;
  Mutex mutex_;
  std::vector<std::unique_ptr<ApiServer>> free_ GUARDED_BY(mutex_);  // they keep connections
  std::vector<ApiServer*> busy_ GUARDED_BY(mutex_);
  bool interrupted_ GUARDED_BY(mutex_) = false;
};

// "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaims/NAME".
std::string claim_path(const ClaimName& name);

}  // namespace nvshare::kubernetes::dra
