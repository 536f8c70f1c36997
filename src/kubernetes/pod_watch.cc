#include "kubernetes/pod_watch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr size_t kEventMax = 16u << 20;  // one pod is at most 1.5 MB in the API server's store
constexpr char kJson[] = "application/json";

// What may stand in a query as it is; a node's name and a resource version need no more.
std::string escaped(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    const bool plain = std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", c);
    out += plain ? std::string(1, static_cast<char>(c)) : std::string(code);
  }
  return out;
}

std::string text_of(const Json& json, const char* field) {
  return json.is_object() && json.contains(field) && json[field].is_string() ? json[field].get<std::string>() : std::string();
}

std::string version_of(const Json& object) {
  return object.is_object() && object.contains("metadata") ? text_of(object["metadata"], "resourceVersion") : std::string();
}

Error refusal(const char* what, int status, const std::string& body) {
  return error_format("%s: the API server answers %d: %.150s", what, status, body.c_str());
}

}  // namespace

PodWatch::PodWatch(ApiServerAddress address, const std::string& node, Listener listener, Pace pace)
    : server_(std::move(address)),
      pods_path_("/api/v1/pods?fieldSelector=spec.nodeName%3D" + escaped(node)),
      listener_(std::move(listener)),
      pace_(pace),
      random_(std::random_device{}()),
      thread_([this] { run(); }) {}

PodWatch::~PodWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  server_.interrupt();
  thread_.join();
}

void PodWatch::run() {
  milliseconds wait = pace_.first_pause;
  bool complained = false;
  while (true) {
    heard_ = false;
    Result<void> ok = version_.empty() || latest_wanted_ ? list() : watch();
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    if (ok || heard_) {
      if (complained) spdlog::info("the API server answers again");
      complained = false;
      wait = pace_.first_pause;
    }
    if (ok) continue;
    if (!complained) spdlog::warn("pods' annotations: {}; limits stay as they are, and it is tried again", ok.error().text);
    complained = true;
    pause(wait);
    wait = std::min(wait * 2, pace_.longest_pause);
  }
}

// Between half and all of it, so that a cluster's nodes do not come back at the same moment.
void PodWatch::pause(milliseconds longest) {
  const milliseconds time = longest / 2 + milliseconds(random_() % static_cast<unsigned long>(longest.count() / 2 + 1));
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, time, [this] { return stop_; });
}

Result<void> PodWatch::list() {
  // The first may come from the API server's cache. Later ones must not: its cache may be older than what was seen already.
  const std::string query = pods_path_ + (latest_wanted_ ? "" : "&resourceVersion=0");
  Result<ApiServer::Reply> reply = server_.get(query, kJson, {});
  if (!reply) return reply.error();
  if (reply->status != 200) return refusal("listing pods", reply->status, reply->body);
  const Json json = Json::parse(reply->body, nullptr, false);
  const std::string version = version_of(json);
  if (version.empty() || !json.contains("items") || !json["items"].is_array()) return error_format("what came is no list of pods");
  std::vector<std::string> pods;
  for (const Json& item : json["items"]) pods.push_back(item.dump());
  version_ = version;
  latest_wanted_ = false;
  ++lists_;
  listener_.listed(pods);
  return {};
}

Result<void> PodWatch::watch() {
  const std::string query = pods_path_ + "&watch=1&allowWatchBookmarks=true&timeoutSeconds=" + std::to_string(pace_.watch.count()) +
                            "&resourceVersion=" + escaped(version_);
  ApiServer::Patience patience;
  patience.quiet_ms = static_cast<long>(pace_.quiet.count());
  patience.whole_ms = static_cast<long>(std::chrono::duration_cast<milliseconds>(pace_.watch).count()) + patience.quiet_ms;
  std::string line;
  event_failed_.reset();
  const auto take = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      line += bytes.substr(0, end);
      if (line.size() > kEventMax) return false;
      if (end == std::string_view::npos) return true;
      if (!take_event(line)) return false;
      line.clear();
      bytes.remove_prefix(end + 1);
    }
    return true;
  };
  Result<ApiServer::Reply> reply = server_.get(query, kJson, patience, take);
  if (event_failed_) return error_format("%.200s", event_failed_->c_str());
  if (!reply) return reply.error();
  if (reply->status == 200) return heard_ ? Result<void>() : Result<void>(error_format("the API server ended a watch without an event"));
  if (reply->status == 410) latest_wanted_ = true;
  return refusal("watching pods", reply->status, reply->body);
}

// False: this watch is of no more use.
bool PodWatch::take_event(const std::string& line) {
  if (line.empty()) return true;
  const Json event = Json::parse(line, nullptr, false);
  const std::string type = text_of(event, "type");
  if (type.empty() || !event.contains("object")) {
    event_failed_ = "what came is no event of a watch";
    latest_wanted_ = true;
    return false;
  }
  const Json& object = event["object"];
  if (type == "ERROR") {
    // Too old a version comes as 410; whatever else it is, a list mends it.
    event_failed_ = "the API server ended the watch: " + object.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 150);
    latest_wanted_ = true;
    return false;
  }
  heard_ = true;
  if (type == "ADDED" || type == "MODIFIED") {
    listener_.changed(object.dump());
  } else if (type == "DELETED") {
    listener_.deleted(object.dump());
  }
  if (const std::string version = version_of(object); !version.empty()) version_ = version;
  return true;
}

}  // namespace nvshare::kubernetes
