#include "kubernetes/event_teller.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

namespace nvshare::kubernetes {
namespace {

constexpr size_t kWaitingMax = 64;
constexpr std::chrono::seconds kBetweenTries{2};

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

EventTeller::EventTeller(ApiServerAddress address, std::string node)
    : server_(std::move(address)), node_(std::move(node)), thread_([this] { run(); }) {}

EventTeller::~EventTeller() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  server_.interrupt();
  thread_.join();
}

void EventTeller::tell(PodLimits::Notice notice) {
  spdlog::warn("{}/{}: {}", notice.name_space, notice.name, notice.text);
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
    waiting_.push_back(std::move(notice));
  }
  changed_.notify_one();
}

std::string EventTeller::event_of(const PodLimits::Notice& notice) const {
  const std::string now = now_text();
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
      {"firstTimestamp", now},
      {"lastTimestamp", now},
      {"count", 1}};
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void EventTeller::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const PodLimits::Notice notice = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    auto reply = server_.post("/api/v1/namespaces/" + notice.name_space + "/events", event_of(notice), {10'000, 10'000});
    const bool again = !reply || reply->status == 401 || reply->status == 429 || reply->status >= 500;
    if (reply && !again && reply->status / 100 != 2) {
      spdlog::warn("an event of {}/{} was refused with {}: {:.150}", notice.name_space, notice.name, reply->status, reply->body);
    }
    lock.lock();
    if (!again) continue;
    if (waiting_.size() < kWaitingMax) waiting_.push_front(notice);
    changed_.wait_for(lock, kBetweenTries, [this] { return stop_; });
  }
}

}  // namespace nvshare::kubernetes
