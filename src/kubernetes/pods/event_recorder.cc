#include "kubernetes/pods/event_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {
namespace {

constexpr ApiPatience kEventPatience{10'000, 10'000};

}  // namespace

EventRecorder::EventRecorder(LoopThread& loop, ApiServerAddress address, std::string node, Pace pace)
    : loop_(loop), node_(std::move(node)), pace_(pace) {
  loop_.call([&] {
    server_.emplace(loop_.loop(), std::move(address));
    next_due_.emplace(loop_.loop(), [this] { send_next(); });
  });
}

EventRecorder::~EventRecorder() {
  loop_.call([this] {
    server_.reset();
    next_due_.reset();
  });
}

void EventRecorder::record(PodLimits::Notice notice) {
  spdlog::warn("{}/{}: {}", notice.name_space, notice.name, notice.text);
  const auto now = Clock::now();
  loop_.post([this, one = Waiting{std::move(notice), api_time_now(), now, now + pace_.patience, pace_.first_pause}] { add(one); });
}

void EventRecorder::add(Waiting one) {
  if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
  waiting_.push_back(std::move(one));
  send_next();
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

bool EventRecorder::is_taken(const Waiting& one, const Result<ApiReply>& reply) const {
  const PodLimits::Notice& notice = one.notice;
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

// The one that is due, or when one is.
void EventRecorder::send_next() {
  const auto next = std::min_element(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) { return a.due < b.due; });
  if (sent_ || next == waiting_.end()) return;
  if (next->due > Clock::now()) return next_due_->arm(nanoseconds_of(next->due));
  sent_ = std::move(*next);
  waiting_.erase(next);
  server_->send(ApiRequest::post("/api/v1/namespaces/" + sent_->notice.name_space + "/events", event_of(*sent_)), kEventPatience,
                [this](const Result<ApiReply>& reply) { answered(reply); });
}

void EventRecorder::answered(const Result<ApiReply>& reply) {
  Waiting one = std::move(*sent_);
  sent_.reset();
  if (!is_taken(one, reply) && waiting_.size() < kWaitingMax) {
    one.due = Clock::now() + one.pause;
    one.pause = std::min(one.pause * 2, pace_.longest_pause);
    waiting_.push_front(std::move(one));
  }
  send_next();
}

}  // namespace nvshare::kubernetes
