#include "kubernetes/pods/object_watch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {
namespace {

using std::chrono::milliseconds;

constexpr char kJson[] = "application/json";

Error refusal(const char* what, int status, const std::string& body) {
  return error_format("%s: the API server answers %d: %.150s", what, status, body.c_str());
}

}  // namespace

// What may stand in a query as it is; a node's name and a resource version need no more.
std::string escaped_for_query(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    const bool plain = std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", c);
    out += plain ? std::string(1, static_cast<char>(c)) : std::string(code);
  }
  return out;
}

ObjectWatch::Watched ObjectWatch::pods_of(const std::string& node) {
  return {"/api/v1/pods?fieldSelector=spec.nodeName%3D" + escaped_for_query(node), "pods' annotations", "limits stay as they are"};
}

ObjectWatch::ObjectWatch(ApiServerAddress address, Watched watched, Listener listener, Pace pace)
    : server_(std::move(address)),
      watched_(std::move(watched)),
      listener_(std::move(listener)),
      pace_(pace),
      random_(std::random_device{}()),
      thread_([this] { run(); }) {}

ObjectWatch::~ObjectWatch() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  server_.interrupt();
  thread_.join();
}

void ObjectWatch::run() {
  milliseconds wait = pace_.first_pause;
  bool complained = false;
  while (true) {
    bool heard = false;
    Result<void> ok = version_.empty() || latest_wanted_ ? list() : watch(&heard);
    {
      Lock lock(mutex_);
      if (stop_) return;
    }
    if (ok || heard) {
      if (complained) spdlog::info("the API server answers again");
      complained = false;
      wait = pace_.first_pause;
    }
    if (ok) continue;
    if (!complained) spdlog::warn("{}: {}; {}, and it is tried again", watched_.name, ok.error().text, watched_.until);
    complained = true;
    pause(wait);
    wait = std::min(wait * 2, pace_.longest_pause);
  }
}

// Between half and all of it, so that a cluster's nodes do not come back at the same moment.
void ObjectWatch::pause(milliseconds longest) {
  const milliseconds time = longest / 2 + milliseconds(random_() % static_cast<unsigned long>(longest.count() / 2 + 1));
  Lock lock(mutex_);
  stopped_.wait_for(mutex_, nanoseconds_of(time), [this]() REQUIRES(mutex_) { return stop_; });
}

Result<void> ObjectWatch::list() {
  // The first may come from the API server's cache. Later ones must not: its cache may be older than what was seen already.
  const std::string query = watched_.path + (latest_wanted_ ? "" : "&resourceVersion=0");
  Result<ApiServer::Reply> reply = server_.get(query, kJson, {});
  if (!reply) return reply.error();
  if (reply->status != 200) return refusal("listing", reply->status, reply->body);
  Result<PodList> list = read_pod_list(reply->body);
  if (!list) return list.error();
  version_ = std::move(list->version);
  latest_wanted_ = false;
  ++lists_;
  listener_.listed(list->pods);
  return {};
}

// heard: something came.
Result<void> ObjectWatch::watch(bool* heard) {
  const std::string query = watched_.path + "&watch=1&allowWatchBookmarks=true&timeoutSeconds=" + std::to_string(pace_.watch.count()) +
                            "&resourceVersion=" + escaped_for_query(version_);
  ApiServer::Patience patience;
  patience.quiet_ms = static_cast<long>(pace_.quiet.count());
  patience.whole_ms = static_cast<long>(std::chrono::duration_cast<milliseconds>(pace_.watch).count()) + patience.quiet_ms;
  PodEvents events(listener_.events);
  Result<ApiServer::Reply> reply = server_.get(query, kJson, patience, [&](std::string_view bytes) { return events.take(bytes); });
  *heard = events.heard();
  if (!events.version().empty()) version_ = events.version();
  if (events.failed()) {
    latest_wanted_ = true;
    return error_format("%.200s", events.failed()->c_str());
  }
  if (!reply) return reply.error();
  if (reply->status == 200) return *heard ? Result<void>() : Result<void>(error_format("the API server ended a watch without an event"));
  if (reply->status == 410) latest_wanted_ = true;
  return refusal("watching", reply->status, reply->body);
}

}  // namespace nvshare::kubernetes
