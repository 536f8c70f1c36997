#include "kubernetes/pods/test_api_server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "kubernetes/pods/test_https_server.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;
using Connection = TestHttpsServer::Connection;

enum class Order { kNone, kCutInAnEvent, kReset, kEnd, kExpired, kErrorEvent, kGarbage, kSilent };

}  // namespace

struct TestApiServer::Parts {
  struct Event {
    long version;
    std::string type;
    std::string object;
  };
  explicit Parts(std::string where) : folder(std::move(where)) {
    renew_token();
    write_token();
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

  void renew_token() { token = "token-" + std::to_string(++tokens); }
  void write_token() const {
    std::ofstream(folder + "/token.new") << token << "\n";
    std::rename((folder + "/token.new").c_str(), (folder + "/token").c_str());
  }

  // Whether one of those that are left of `count` was taken. Under the mutex.
  static bool take(int& count) { return count > 0 && count-- > 0; }

  void serve(Connection& connection, const std::string& request) {
    const std::string target = TestHttpsServer::target_of(request);
    std::unique_lock lock(mutex);
    const bool watch = TestHttpsServer::parameter_of(target, "watch") == "1";
    if (take(slow)) changed.wait_for(lock, 80ms, [this] { return stop; });
    if (request.find("Authorization: Bearer " + token + "\r\n") == std::string::npos) {
      ++unauthorized;
      write_token();
      lock.unlock();
      connection.reply(401, R"({"kind":"Status","code":401})");
      return;
    }
    if (take(errors)) {
      const int status = error_status;
      lock.unlock();
      connection.reply(status, R"({"kind":"Status","message":"configured to fail"})");
      return;
    }
    if (request.starts_with("POST ") && !refusals.empty()) {
      const int status = refusals.front();
      refusals.erase(refusals.begin());
      ++refused;
      lock.unlock();
      connection.reply(status, R"({"kind":"Status","message":"events are forbidden"})");
      return;
    }
    if (request.starts_with("POST ")) {
      events.push_back(TestHttpsServer::body_of(request));
      lock.unlock();
      connection.reply(201, "{}");
      return;
    }
    if (TestHttpsServer::parameter_of(target, "fieldSelector") != "spec.nodeName%3Dnode-1" || !target.starts_with("/api/v1/pods?")) {
      lock.unlock();
      connection.reply(404, "{}");
      return;
    }
    if (watch) return serve_watch(connection, lock, std::stol("0" + TestHttpsServer::parameter_of(target, "resourceVersion")));
    serve_list(connection, lock);
  }

  void serve_list(Connection& connection, std::unique_lock<std::mutex>& lock) {
    ++lists;
    Json list = {{"kind", "PodList"}, {"metadata", {{"resourceVersion", std::to_string(version)}}}, {"items", Json::array()}};
    for (const auto& [name, pod] : pods) list["items"].push_back(pod);
    const bool truncate = take(lists_to_truncate);
    lock.unlock();
    const std::string body = list.dump();
    if (!truncate) {
      connection.reply(200, body);
      return;
    }
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, body.size() / 2));
  }

  void serve_watch(Connection& connection, std::unique_lock<std::mutex>& lock, long from) {
    ++watches;
    if (take(expired_statuses)) {
      lock.unlock();
      connection.reply(410, R"({"kind":"Status","code":410})");
      return;
    }
    const long mine = orders;  // later ones are for this watch
    lock.unlock();
    if (!connection.begin_chunks()) return;
    lock.lock();
    const auto expired = [&] {
      return R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})"
             "\n";
    };
    if (from < forgotten) {
      lock.unlock();
      connection.send_chunk(expired());
      connection.send("0\r\n\r\n");
      return;
    }
    while (true) {
      const auto next = [&] {
        return std::find_if(history.begin(), history.end(), [&](const Event& event) { return event.version > from; });
      };
      changed.wait(lock, [&] { return stop || orders > mine || next() != history.end(); });
      if (stop) return;
      if (orders > mine) return obey(connection, lock, order, expired());
      const Event event = *next();
      from = event.version;
      lock.unlock();
      if (!connection.send_chunk("{\"type\":\"" + event.type + "\",\"object\":" + event.object + "}\n")) return;
      lock.lock();
    }
  }

  void obey(Connection& connection, std::unique_lock<std::mutex>& lock, Order what, const std::string& expired) {
    if (what == Order::kSilent) return changed.wait(lock, [this] { return stop; });
    lock.unlock();
    switch (what) {
      case Order::kNone:
      case Order::kSilent:
        break;
      case Order::kCutInAnEvent:
        connection.send("100\r\n{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"uid\":\"hal");
        break;
      case Order::kReset:
        connection.reset_at_end();
        break;
      case Order::kEnd:
        connection.send("0\r\n\r\n");
        break;
      case Order::kExpired:
        connection.send_chunk(expired);
        break;
      case Order::kErrorEvent:
        connection.send_chunk(R"({"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}})"
                              "\n");
        break;
      case Order::kGarbage:
        connection.send_chunk("<html>a proxy's page</html>\n");
        break;
    }
  }

  void publish(const char* type, Json pod) {
    ++version;
    pod["metadata"]["resourceVersion"] = std::to_string(version);
    const std::string name = pod["metadata"]["name"];
    history.push_back({version, type, pod.dump()});
    if (std::string_view(type) == "DELETED") {
      pods.erase(name);
    } else {
      pods[name] = std::move(pod);
    }
    changed.notify_all();
  }

  void give(Order what) {
    order = what;
    ++orders;
  }
  void forget() {
    ++version;
    forgotten = version;
    history.clear();
  }

  const std::string folder;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Json> pods;  // by name
  std::deque<Event> history;
  long version = 1000, forgotten = 0;
  long orders = 0;
  Order order = Order::kNone;
  int slow = 0, errors = 0, error_status = 500, expired_statuses = 0, lists_to_truncate = 0;
  std::string token;
  int tokens = 0;
  std::vector<std::string> events;
  int lists = 0, watches = 0, unauthorized = 0;
  std::vector<int> refusals;  // of events, to come
  int refused = 0;            // of events
  int uids = 0;
  bool stop = false;
  std::optional<TestHttpsServer> https;  // last
};

TestApiServer::TestApiServer(std::string folder) : parts_(std::make_unique<Parts>(std::move(folder))) {}
TestApiServer::~TestApiServer() = default;

ApiServerAddress TestApiServer::address() const { return parts_->https->address(); }

std::string TestApiServer::add_pod(const std::string& name, const std::map<std::string, int>& resources, const std::string& uid) {
  std::lock_guard lock(parts_->mutex);
  char made[40];
  std::snprintf(made, sizeof made, "00000000-1111-2222-3333-%012d", ++parts_->uids);
  Json limits = Json::object();
  for (const auto& [resource, amount] : resources) limits[resource] = std::to_string(amount);
  const std::string id = uid.empty() ? made : uid;
  parts_->publish("ADDED", {{"apiVersion", "v1"},
                            {"kind", "Pod"},
                            {"metadata", {{"name", name}, {"namespace", "team"}, {"uid", id}, {"annotations", Json::object()}}},
                            {"spec", {{"nodeName", "node-1"}, {"containers", {{{"name", "main"}, {"resources", {{"limits", limits}}}}}}}},
                            {"status", {{"phase", "Running"}}}});
  return id;
}

void TestApiServer::annotate(const std::string& name, const std::string& annotation, const std::string& value) {
  std::lock_guard lock(parts_->mutex);
  Json pod = parts_->pods.at(name);
  if (value.empty()) {
    pod["metadata"]["annotations"].erase(annotation);
  } else {
    pod["metadata"]["annotations"][annotation] = value;
  }
  parts_->publish("MODIFIED", std::move(pod));
}

void TestApiServer::begin_deletion(const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  Json pod = parts_->pods.at(name);
  pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  pod["metadata"]["deletionGracePeriodSeconds"] = 30;
  parts_->publish("MODIFIED", std::move(pod));
}

void TestApiServer::delete_pod(const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  parts_->publish("DELETED", parts_->pods.at(name));
}

void TestApiServer::bookmark() {
  std::lock_guard lock(parts_->mutex);
  ++parts_->version;
  const Json object = {{"kind", "Pod"}, {"metadata", {{"resourceVersion", std::to_string(parts_->version)}}}};
  parts_->history.push_back({parts_->version, "BOOKMARK", object.dump()});
  parts_->changed.notify_all();
}

void TestApiServer::fault(Fault fault) {
  std::lock_guard lock(parts_->mutex);
  Parts& server = *parts_;
  switch (fault) {
    case Fault::kCutInAnEvent:
      server.give(Order::kCutInAnEvent);
      break;
    case Fault::kReset:
      server.give(Order::kReset);
      break;
    case Fault::kEnd:
      server.give(Order::kEnd);
      break;
    case Fault::kExpired:
      server.forget();
      server.give(Order::kExpired);
      break;
    case Fault::kExpiredStatus:
      server.forget();
      server.expired_statuses = 1;
      server.give(Order::kReset);
      break;
    case Fault::kErrorEvent:
      server.give(Order::kErrorEvent);
      break;
    case Fault::kServerErrors:
    case Fault::kTooManyRequests:
      server.errors = 3;
      server.error_status = fault == Fault::kServerErrors ? 500 : 429;
      server.give(Order::kReset);
      break;
    case Fault::kRefuseConnections:
      server.https->refuse_connections(60ms);
      server.give(Order::kReset);
      break;
    case Fault::kHandshakeFails:
      server.https->fail_handshakes(3);
      server.give(Order::kReset);
      break;
    case Fault::kSlow:
      server.slow = 3;
      server.give(Order::kReset);
      break;
    case Fault::kGarbage:
      server.give(Order::kGarbage);
      break;
    case Fault::kSilent:
      server.give(Order::kSilent);
      break;
    case Fault::kTokenRotated:
      server.renew_token();
      server.give(Order::kReset);
      break;
    case Fault::kTruncatedList:
      server.forget();
      server.lists_to_truncate = 1;
      server.give(Order::kExpired);
      break;
  }
  server.changed.notify_all();
}

std::vector<std::string> TestApiServer::events() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->events;
}
int TestApiServer::lists() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->lists;
}
int TestApiServer::watches() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->watches;
}
void TestApiServer::refuse_events(const std::vector<int>& statuses) {
  std::lock_guard lock(parts_->mutex);
  parts_->refusals = statuses;
}

int TestApiServer::refused_events() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->refused;
}

int TestApiServer::unauthorized() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->unauthorized;
}

}  // namespace nvshare::kubernetes
