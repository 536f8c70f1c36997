#include "kubernetes/pods/object_watch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {
namespace {

using std::chrono::milliseconds;

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

ObjectWatch::ObjectWatch(LoopThread& loop, ApiServerAddress address, Watched watched, Listener listener, Pace pace)
    : loop_(loop),
      watched_(std::move(watched)),
      listener_(std::move(listener)),
      pace_(pace),
      pause_(pace.first_pause),
      random_(std::random_device{}()) {
  loop_.call([&] {
    server_.emplace(loop_.loop(), std::move(address));
    next_.emplace(loop_.loop(), [this] { go_on(); });
    next_->arm(monotonic_ns());
  });
}

ObjectWatch::~ObjectWatch() {
  loop_.call([this] {
    server_.reset();
    next_.reset();
  });
}

void ObjectWatch::go_on() {
  if (version_.empty() || latest_wanted_) return list();
  watch();
}

// What is next, once a list or a watch has ended. heard: something came.
void ObjectWatch::after(const Result<void>& done, bool heard) {
  if (done || heard) {
    if (complained_) spdlog::info("the API server answers again");
    complained_ = false;
    pause_ = pace_.first_pause;
  }
  if (done) return next_->arm(monotonic_ns());
  if (!complained_) spdlog::warn("{}: {}; {}, and it is tried again", watched_.name, done.error().text, watched_.until);
  complained_ = true;
  next_->arm(monotonic_ns() + nanoseconds_of(jittered(pause_)));
  pause_ = std::min(pause_ * 2, pace_.longest_pause);
}

// Between half and all of it, so that a cluster's nodes do not come back at the same moment.
milliseconds ObjectWatch::jittered(milliseconds longest) {
  return longest / 2 + milliseconds(random_() % static_cast<unsigned long>(longest.count() / 2 + 1));
}

void ObjectWatch::list() {
  // The first may come from the API server's cache. Later ones must not: its cache may be older than what was seen already.
  const std::string query = watched_.path + (latest_wanted_ ? "" : "&resourceVersion=0");
  server_->send(ApiRequest::get(query), {}, [this](const Result<ApiReply>& reply) { after(take_list(reply), false); });
}

Result<void> ObjectWatch::take_list(const Result<ApiReply>& reply) {
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

void ObjectWatch::watch() {
  const std::string query = watched_.path + "&watch=1&allowWatchBookmarks=true&timeoutSeconds=" + std::to_string(pace_.watch.count()) +
                            "&resourceVersion=" + escaped_for_query(version_);
  ApiPatience patience;
  patience.quiet_ms = static_cast<long>(pace_.quiet.count());
  patience.whole_ms = static_cast<long>(std::chrono::duration_cast<milliseconds>(pace_.watch).count()) + patience.quiet_ms;
  events_.emplace(listener_.events);
  server_->send(
      ApiRequest::get(query), patience, [this](const Result<ApiReply>& reply) { after(watch_ended(reply), events_->heard()); },
      [this](std::string_view bytes) { return events_->take(bytes); });
}

Result<void> ObjectWatch::watch_ended(const Result<ApiReply>& reply) {
  if (!events_->version().empty()) version_ = events_->version();
  if (events_->failed()) {
    latest_wanted_ = true;
    return error_format("%.200s", events_->failed()->c_str());
  }
  if (!reply) return reply.error();
  if (reply->status == 200) {
    return events_->heard() ? Result<void>() : Result<void>(error_format("the API server ended a watch without an event"));
  }
  if (reply->status == 410) latest_wanted_ = true;
  return refusal("watching", reply->status, reply->body);
}

}  // namespace nvshare::kubernetes
