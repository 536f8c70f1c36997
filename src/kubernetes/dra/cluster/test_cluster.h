// An API server for tests, as far as a DRA driver sees one: nodes, ResourceSlices with a watch, ResourceClaims and their status. Objects
// have versions, UIDs and preconditions as real ones do. Any thread may call it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kubernetes/dra/claim.h"
#include "kubernetes/pods/api_server.h"

namespace nvshare::kubernetes::dra {

class TestCluster {
 public:
  // Writes ca.crt and token into `folder`. There is the node `kTestNode`.
  explicit TestCluster(const std::string& folder);
  ~TestCluster();

  ApiServerAddress address() const;

  std::vector<Json> slices() const;
  void delete_slices();                                      // as a kubelet that starts does
  void change_slice(const std::function<void(Json*)>& how);  // the first one
  void add_slice(Json slice);                                // of another driver, another node, another pool
  void renew_node();                                         // deleted and made again: another UID

  void put_claim(const Json& claim);
  void delete_claim(const std::string& name_space, const std::string& name);
  Json claim(const std::string& name_space, const std::string& name) const;  // null: there is none

  // Of this node; `name` is "namespace/name".
  void put_pod(const Json& pod);
  void change_pod(const std::string& name, const std::function<void(Json*)>& how);
  void annotate(const std::string& name, const std::string& annotation, const std::string& value);  // empty: removes it
  void delete_pod(const std::string& name);
  std::vector<Json> events() const;  // that were posted

  // ---- faults ----
  // The next requests with this method and a path that has this part are answered with this status.
  void refuse(const std::string& method, const std::string& part, int status, int count = 1);
  // Of each slice that is written, as the API server does where a feature gate is off.
  void drop_from_devices(const std::string& field);  // empty: none any more
  void cut_watches();                                // and forget what was before

  int requests(const std::string& method, const std::string& part) const;  // so far

  // What it had to do so far. Bytes: of requests with their heads, and of the bodies of answers and watches' events.
  struct Traffic {
    int requests = 0, watch_events = 0;
    int64_t received = 0, sent = 0;
  };
  Traffic traffic() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes::dra
