#include "kubernetes/pods/event_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {

EventRecorder::EventRecorder(ApiServerAddress address, std::string node, Pace pace)
    : server_(std::move(address)), node_(std::move(node)), pace_(pace), thread_([this] { run(); }) {}

EventRecorder::~EventRecorder() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  server_.interrupt();
  thread_.join();
}

void EventRecorder::record(PodLimits::Notice notice) {
  spdlog::warn("{}/{}: {}", notice.name_space, notice.name, notice.text);
  const auto now = Clock::now();
  {
    Lock lock(mutex_);
    if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
    waiting_.push_back({std::move(notice), api_time_now(), now, now + pace_.patience, pace_.first_pause});
  }
  changed_.notify_one();
}

std::string EventRecorder::event_of(const Waiting& one) const {
  const PodLimits::Notice& notice = one.notice;
  const nlohmann::json event = {
      {"apiVersion", "v1"},
      {"kind", "Event"},
      {"metadata", {{"generateName", notice.name.substr(0, 200) + ".nvshare-"}, {"namespace", notice.name_space}}},
      {"involvedObject",
       {{"apiVersion", "v1"}, {"kind", "Pod"}, {"namespace", notice.name_space}, {"name", notice.name}, {"uid", notice.uid}}},
      {"reason", notice.reason},
      {"message", notice.text},
      {"type", notice.warning ? "Warning" : "Normal"},
      {"source", {{"component", "nvshare-device-plugin"}, {"host", node_}}},
      {"reportingComponent", "nvshare.com/device-plugin"},
      {"reportingInstance", node_},
      {"firstTimestamp", one.time},
      {"lastTimestamp", one.time},
      {"count", 1}};
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool EventRecorder::is_taken(const Waiting& one) {
  const PodLimits::Notice& notice = one.notice;
  auto reply = server_.post("/api/v1/namespaces/" + notice.name_space + "/events", event_of(one), {10'000, 10'000});
  if (reply && reply->status / 100 == 2) return true;
  const std::string why = reply ? "refused with " + std::to_string(reply->status) + ": " + reply->body.substr(0, 150) : reply.error().text;
  // Rights may be given, a busy server calms down; what is wrong with the event itself stays wrong.
  const bool may_pass = !reply || reply->status == 401 || reply->status == 403 || reply->status == 429 || reply->status >= 500;
  const bool given_up = !may_pass || Clock::now() + one.pause > one.given_up;
  if (given_up) {
    spdlog::warn("the event {} of {}/{} is not recorded: {}", notice.reason, notice.name_space, notice.name, why);
  } else if (one.pause == pace_.first_pause) {
    spdlog::warn("the event {} of {}/{} is tried again later: {}", notice.reason, notice.name_space, notice.name, why);
  }
  return given_up;
}

void EventRecorder::run() {
  Lock lock(mutex_);
  while (true) {
    const auto next = std::min_element(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) { return a.due < b.due; });
    if (stop_) return;
    if (next == waiting_.end()) {
      changed_.wait(mutex_);
      continue;
    }
    if (next->due > Clock::now()) {
      changed_.wait_until(mutex_, nanoseconds_of(next->due));
      continue;
    }
    Waiting one = std::move(*next);
    waiting_.erase(next);
    lock.unlock();
    const bool done = is_taken(one);
    lock.lock();
    if (done || waiting_.size() >= kWaitingMax) continue;
    one.due = Clock::now() + one.pause;
    one.pause = std::min(one.pause * 2, pace_.longest_pause);
    waiting_.push_front(std::move(one));
  }
}

}  // namespace nvshare::kubernetes
