#include "kubernetes/dra/cluster/test_cluster.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

#include "kubernetes/dra/test_claims.h"
#include "kubernetes/pods/test_https_server.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kSlicesPath[] = "/apis/resource.k8s.io/v1/resourceslices";
constexpr char kPodsPath[] = "/api/v1/pods";
constexpr char kNamespacesPath[] = "/api/v1/namespaces/";
constexpr char kClaimsPath[] = "/apis/resource.k8s.io/v1/namespaces/";

struct Answer {
  int status = 200;
  std::string body = "{}";
};

Answer failure(int status, const char* why) { return {status, Json{{"kind", "Status"}, {"code", status}, {"message", why}}.dump()}; }

std::string path_of_target(const std::string& target) { return target.substr(0, target.find('?')); }

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

struct TestCluster::Parts {
  using Connection = TestHttpsServer::Connection;
  struct Event {
    const char* path;  // of its list
    long version;
    std::string line;
  };
  struct Refusal {
    std::string method, part;
    int status, count;
  };

  explicit Parts(const std::string& folder) {
    std::ofstream(folder + "/token") << "token-of-the-test\n";
    https.emplace(folder, [this](Connection& connection, const std::string& request) { serve(connection, request); });
  }
  ~Parts() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    https.reset();
  }

  void serve(Connection& connection, const std::string& request) {
    const std::string method = TestHttpsServer::method_of(request);
    const std::string target = TestHttpsServer::target_of(request);
    std::unique_lock lock(mutex);
    seen.push_back(method + " " + target);
    ++traffic.requests;
    traffic.received += static_cast<int64_t>(request.size());
    if (const std::optional<int> refused = take_refusal(method, target)) {
      lock.unlock();
      connection.reply(*refused, failure(*refused, "configured to fail").body);
      return;
    }
    if (TestHttpsServer::parameter_of(target, "watch") == "1") return serve_watch(connection, lock, target);
    const Answer answer = request.find("Authorization: Bearer token-of-the-test\r\n") == std::string::npos
                              ? failure(401, "unauthorized")
                              : answer_to(method, target, TestHttpsServer::body_of(request));
    traffic.sent += static_cast<int64_t>(answer.body.size());
    lock.unlock();
    connection.reply(answer.status, answer.body);
  }

  std::optional<int> take_refusal(const std::string& method, const std::string& target) {
    for (Refusal& one : refusals) {
      if (one.count > 0 && one.method == method && target.find(one.part) != std::string::npos) {
        --one.count;
        return one.status;
      }
    }
    return {};
  }

  Answer answer_to(const std::string& method, const std::string& target, const std::string& body) {
    const std::string path = path_of_target(target);
    if (method == "GET" && path == std::string("/api/v1/nodes/") + kTestNode) {
      return {200, Json{{"kind", "Node"}, {"metadata", {{"name", kTestNode}, {"uid", node_uid}}}}.dump()};
    }
    if (path == kSlicesPath && method == "GET") return list_slices(target);
    if (path == kSlicesPath && method == "POST") return create_slice(Json::parse(body));
    if (path.starts_with(kSlicesPath) && method == "PUT") return update_slice(last_part(path), Json::parse(body));
    if (path.starts_with(kSlicesPath) && method == "DELETE") return remove_slice(last_part(path), Json::parse(body));
    if (path == kPodsPath && method == "GET") return list_pods(target);
    if (path.starts_with(kNamespacesPath) && path.ends_with("/events") && method == "POST") {
      events.push_back(Json::parse(body));
      return {201, "{}"};
    }
    if (path.starts_with(kClaimsPath)) return answer_of_claims(method, target, body);
    return failure(404, "no such path");
  }

  Answer list_slices(const std::string& target) const {
    if (TestHttpsServer::parameter_of(target, "fieldSelector") !=
        std::string("spec.driver%3D") + kDriverName + "%2Cspec.nodeName%3D" + kTestNode) {
      return failure(400, "that selector is not for this test");
    }
    Json list = {{"kind", "ResourceSliceList"}, {"metadata", {{"resourceVersion", std::to_string(version)}}}, {"items", Json::array()}};
    for (const auto& [name, slice] : slices) {
      if (!is_selected(slice)) continue;
      Json item = slice;
      item.erase("kind");  // as in real lists
      item.erase("apiVersion");
      list["items"].push_back(std::move(item));
    }
    return {200, list.dump()};
  }

  Answer list_pods(const std::string& target) const {
    if (TestHttpsServer::parameter_of(target, "fieldSelector") != std::string("spec.nodeName%3D") + kTestNode) {
      return failure(400, "that selector is not for this test");
    }
    Json list = {{"kind", "PodList"}, {"metadata", {{"resourceVersion", std::to_string(version)}}}, {"items", Json::array()}};
    for (const auto& [name, pod] : pods) list["items"].push_back(pod);
    return {200, list.dump()};
  }

  void keep_pod(const char* type, Json pod) {
    pod["metadata"]["resourceVersion"] = std::to_string(++version);
    const std::string name = text_of(pod["metadata"], "namespace") + "/" + text_of(pod["metadata"], "name");
    history.push_back({kPodsPath, version, Json{{"type", type}, {"object", pod}}.dump() + "\n"});
    if (std::string_view(type) == "DELETED") {
      pods.erase(name);
    } else {
      pods[name] = std::move(pod);
    }
    changed.notify_all();
  }

  static bool is_selected(const Json& slice) {
    return text_of(slice["spec"], "driver") == kDriverName && text_of(slice["spec"], "nodeName") == kTestNode;
  }

  void keep(const char* type, Json slice) {
    slice["metadata"]["resourceVersion"] = std::to_string(++version);
    const std::string name = text_of(slice["metadata"], "name");
    if (is_selected(slice)) history.push_back({kSlicesPath, version, Json{{"type", type}, {"object", slice}}.dump() + "\n"});
    if (std::string_view(type) == "DELETED") {
      slices.erase(name);
    } else {
      slices[name] = std::move(slice);
    }
    changed.notify_all();
  }

  void drop_fields(Json* slice) const {
    if (dropped.empty()) return;
    for (Json& device : (*slice)["spec"]["devices"]) device.erase(dropped);
  }

  Answer create_slice(Json slice) {
    Json& metadata = slice["metadata"];
    const Json* owner = field_of(metadata, "ownerReferences");
    if (owner == nullptr || text_of(owner->at(0), "uid") != node_uid) return failure(422, "another node owns it");
    drop_fields(&slice);
    metadata["name"] = text_of(metadata, "generateName") + std::to_string(++names);
    metadata["uid"] = test_uid(800000 + names);
    keep("ADDED", slice);
    return {201, slices[text_of(metadata, "name")].dump()};
  }

  Answer update_slice(const std::string& name, Json slice) {
    const auto found = slices.find(name);
    if (found == slices.end()) return failure(404, "no such slice");
    if (text_of(slice["metadata"], "resourceVersion") != text_of(found->second["metadata"], "resourceVersion")) {
      return failure(409, "the object has been modified");
    }
    if (text_of(slice, "kind") != "ResourceSlice") return failure(400, "no kind");
    drop_fields(&slice);
    if (slice != found->second) keep("MODIFIED", slice);
    return {200, slices[name].dump()};
  }

  Answer remove_slice(const std::string& name, const Json& options) {
    const auto found = slices.find(name);
    if (found == slices.end()) return failure(404, "no such slice");
    const Json* wanted = field_of(options, "preconditions");
    const Json& metadata = found->second["metadata"];
    if (wanted == nullptr || text_of(*wanted, "uid") != text_of(metadata, "uid") ||
        text_of(*wanted, "resourceVersion") != text_of(metadata, "resourceVersion")) {
      return failure(409, "a precondition does not hold");
    }
    keep("DELETED", found->second);
    return {};
  }

  // GET /apis/.../namespaces/NS/resourceclaims/NAME, PATCH .../NAME/status
  Answer answer_of_claims(const std::string& method, const std::string& target, const std::string& body) {
    std::string path = path_of_target(target);
    const bool is_status = path.ends_with("/status");
    if (is_status) path.resize(path.size() - std::string_view("/status").size());
    const auto found = claims.find(path);
    if (found == claims.end()) return failure(404, "no such claim");
    if (method == "GET" && !is_status) return {200, found->second.dump()};
    if (method != "PATCH" || !is_status) return failure(405, "not that");
    const Json applied = Json::parse(body);
    if (TestHttpsServer::parameter_of(target, "fieldManager") != kDriverName)
      return failure(400, "fieldManager is required for apply patch");
    if (text_of(applied["metadata"], "uid") != text_of(found->second["metadata"], "uid")) return failure(409, "uid mismatch");
    found->second["status"]["devices"] = applied["status"]["devices"];
    return {200, found->second.dump()};
  }

  void serve_watch(Connection& connection, std::unique_lock<std::mutex>& lock, const std::string& target) {
    long from = std::stol("0" + TestHttpsServer::parameter_of(target, "resourceVersion"));
    const std::string path = path_of_target(target);
    const int mine = cuts;
    lock.unlock();
    if (!connection.begin_chunks()) return;
    lock.lock();
    if (from < forgotten) {
      lock.unlock();
      connection.send_chunk(R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})"
                            "\n");
      return;
    }
    while (true) {
      const auto next = [&] {
        return std::find_if(history.begin(), history.end(), [&](const Event& event) { return event.version > from && event.path == path; });
      };
      changed.wait(lock, [&] { return stop || cuts > mine || next() != history.end(); });
      if (stop || cuts > mine) return;
      const Event event = *next();
      from = event.version;
      ++traffic.watch_events;
      traffic.sent += static_cast<int64_t>(event.line.size());
      lock.unlock();
      if (!connection.send_chunk(event.line)) return;
      lock.lock();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Json> slices;  // by name
  std::map<std::string, Json> claims;  // by path
  std::map<std::string, Json> pods;    // by "namespace/name"
  std::vector<Json> events;            // posted
  Traffic traffic;
  std::deque<Event> history;
  std::vector<Refusal> refusals;
  std::vector<std::string> seen;  // "GET /path?query"
  std::string node_uid = test_uid(700000);
  std::string dropped;
  long version = 1000, forgotten = 0;
  int names = 0, cuts = 0;
  bool stop = false;
  std::optional<TestHttpsServer> https;  // last
};

TestCluster::TestCluster(const std::string& folder) : parts_(std::make_unique<Parts>(folder)) {}
TestCluster::~TestCluster() = default;

ApiServerAddress TestCluster::address() const { return parts_->https->address(); }

std::vector<Json> TestCluster::slices() const {
  std::lock_guard lock(parts_->mutex);
  std::vector<Json> all;
  for (const auto& [name, slice] : parts_->slices) all.push_back(slice);
  return all;
}

void TestCluster::delete_slices() {
  std::lock_guard lock(parts_->mutex);
  const auto all = parts_->slices;
  for (const auto& [name, slice] : all) parts_->keep("DELETED", slice);
}

void TestCluster::change_slice(const std::function<void(Json*)>& how) {
  std::lock_guard lock(parts_->mutex);
  Json slice = parts_->slices.begin()->second;
  how(&slice);
  parts_->keep("MODIFIED", std::move(slice));
}

void TestCluster::add_slice(Json slice) {
  std::lock_guard lock(parts_->mutex);
  slice["metadata"]["uid"] = test_uid(800000 + ++parts_->names);
  parts_->keep("ADDED", std::move(slice));
}

void TestCluster::renew_node() {
  std::lock_guard lock(parts_->mutex);
  parts_->node_uid = test_uid(700001);
}

void TestCluster::put_claim(const Json& claim) {
  const Json& metadata = claim.at("metadata");
  std::lock_guard lock(parts_->mutex);
  parts_->claims[kClaimsPath + text_of(metadata, "namespace") + "/resourceclaims/" + text_of(metadata, "name")] = claim;
}

void TestCluster::delete_claim(const std::string& name_space, const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  parts_->claims.erase(kClaimsPath + name_space + "/resourceclaims/" + name);
}

Json TestCluster::claim(const std::string& name_space, const std::string& name) const {
  std::lock_guard lock(parts_->mutex);
  const auto found = parts_->claims.find(kClaimsPath + name_space + "/resourceclaims/" + name);
  return found == parts_->claims.end() ? Json() : found->second;
}

void TestCluster::put_pod(const Json& pod) {
  std::lock_guard lock(parts_->mutex);
  const bool is_new = !parts_->pods.contains(text_of(pod.at("metadata"), "namespace") + "/" + text_of(pod.at("metadata"), "name"));
  parts_->keep_pod(is_new ? "ADDED" : "MODIFIED", pod);
}

void TestCluster::change_pod(const std::string& name, const std::function<void(Json*)>& how) {
  std::lock_guard lock(parts_->mutex);
  Json pod = parts_->pods.at(name);
  how(&pod);
  parts_->keep_pod("MODIFIED", std::move(pod));
}

void TestCluster::annotate(const std::string& name, const std::string& annotation, const std::string& value) {
  change_pod(name, [&](Json* pod) {
    (*pod)["metadata"]["annotations"][annotation] = value;
    if (value.empty()) (*pod)["metadata"]["annotations"].erase(annotation);
  });
}

void TestCluster::delete_pod(const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  parts_->keep_pod("DELETED", parts_->pods.at(name));
}

std::vector<Json> TestCluster::events() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->events;
}

void TestCluster::refuse(const std::string& method, const std::string& part, int status, int count) {
  std::lock_guard lock(parts_->mutex);
  parts_->refusals.push_back({method, part, status, count});
}

void TestCluster::drop_from_devices(const std::string& field) {
  std::lock_guard lock(parts_->mutex);
  parts_->dropped = field;
}

void TestCluster::cut_watches() {
  std::lock_guard lock(parts_->mutex);
  ++parts_->cuts;
  parts_->forgotten = ++parts_->version;
  parts_->history.clear();
  parts_->changed.notify_all();
}

TestCluster::Traffic TestCluster::traffic() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->traffic;
}

int TestCluster::requests(const std::string& method, const std::string& part) const {
  std::lock_guard lock(parts_->mutex);
  return static_cast<int>(std::count_if(parts_->seen.begin(), parts_->seen.end(), [&](const std::string& one) {
    return one.starts_with(method + " ") && one.find(part) != std::string::npos;
  }));
}

}  // namespace nvshare::kubernetes::dra
