#include "kubernetes/pods/limit_publisher.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace nvshare::kubernetes {
namespace {

using protocol::admin::AdminConnection;
using protocol::admin::PodRequest;
using protocol::admin::PodsRequest;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kUntilWoken{60'000};

bool has_ended(const AdminConnection& scheduler) {
  pollfd ended{scheduler.descriptor(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;  // between two requests only the end of the connection can be read
}

// In as many requests as it takes. A scheduler of before `list` takes each by itself, and forgets no pod.
Result<void> send(AdminConnection& scheduler, const LimitPublisher::Pods& pods, bool complete) {
  using protocol::admin::kPodsMax;
  const bool fits = pods.size() <= kPodsMax;
  for (size_t first = 0; first == 0 || first < pods.size(); first += kPodsMax) {
    const size_t end = std::min(first + kPodsMax, pods.size());
    PodsRequest request{{pods.begin() + static_cast<ptrdiff_t>(first), pods.begin() + static_cast<ptrdiff_t>(end)}, complete && fits};
    if (complete && !fits && first == 0) request.list = PodsRequest::List::kFirst;
    if (complete && !fits && end == pods.size()) request.list = PodsRequest::List::kLast;
    Result<std::string> line = scheduler.ask(request);
    if (!line) return line.error();
    if (auto taken = protocol::admin::decode_ok(*line); !taken) return taken;
  }
  return {};
}

}  // namespace

LimitPublisher::LimitPublisher(std::string runtime_dir)
    : runtime_dir_(std::move(runtime_dir)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

LimitPublisher::~LimitPublisher() {
  {
    Lock lock(wanted_mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void LimitPublisher::wake() { eventfd_write(wake_.get(), 1); }

void LimitPublisher::wait(int scheduler, milliseconds longest) {
  pollfd sources[] = {{wake_.get(), POLLIN, 0}, {scheduler, POLLIN, 0}};  // a descriptor of -1 is left out
  poll(sources, 2, static_cast<int>(longest.count()));
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
}

void LimitPublisher::set_wanted(const Pods& pods, bool complete) {
  {
    Lock lock(wanted_mutex_);
    ByUid before = std::exchange(wanted_, {});
    for (const PodRequest& pod : pods) {
      before.erase(pod.uid);
      gone_.erase(pod.uid);
      wanted_[pod.uid] = pod;
    }
    for (const auto& [uid, pod] : before) gone_.insert(uid);
    complete_ = complete;
    is_set_ = true;
  }
  wake();
}

Result<void> LimitPublisher::publish() {
  Lock lock(connection_mutex_);
  const bool was_connected = scheduler_.has_value();
  Result<void> done = publish_difference();
  // The scheduler that was there may have ended meanwhile; another one may be there already.
  if (!done && was_connected) done = publish_difference();
  wake();  // there may be another connection to look at, or none
  return done;
}

LimitPublisher::Difference LimitPublisher::difference() {
  Lock lock(wanted_mutex_);
  Difference difference;
  difference.complete = complete_ && !published_complete_;
  for (const auto& [uid, pod] : wanted_) {
    const auto published = published_.find(uid);
    if (difference.complete || published == published_.end() || published->second != pod) difference.pods.push_back(pod);
  }
  if (difference.complete) return difference;  // whatever it does not name is gone
  for (const std::string& uid : gone_) {
    PodRequest pod;
    pod.uid = uid;
    pod.gone = true;
    difference.pods.push_back(std::move(pod));
  }
  return difference;
}

void LimitPublisher::note_published(const Difference& sent) {
  Lock lock(wanted_mutex_);
  if (sent.complete) published_.clear();
  for (const PodRequest& pod : sent.pods) {
    if (pod.gone) {
      published_.erase(pod.uid);
      gone_.erase(pod.uid);
    } else {
      published_[pod.uid] = pod;
    }
  }
  published_complete_ = published_complete_ || sent.complete;
  // What a complete list did not name is gone there; what was named in it may have ended while it was sent.
  if (sent.complete) std::erase_if(gone_, [this](const std::string& uid) REQUIRES(connection_mutex_) { return !published_.contains(uid); });
}

Result<void> LimitPublisher::publish_difference() {
  if (scheduler_ && has_ended(*scheduler_)) scheduler_.reset();
  const bool is_new = !scheduler_;
  if (is_new) {
    Result<AdminConnection> opened = AdminConnection::open(runtime_dir_);
    if (!opened) return opened.error();
    scheduler_.emplace(std::move(*opened));
    published_.clear();
    published_complete_ = false;
  }
  const Difference now = difference();
  // A new connection is asked in any case: one that is open and never answers is no scheduler.
  if (now.pods.empty() && !now.complete && !is_new) return {};
  if (auto sent = send(*scheduler_, now.pods, now.complete); !sent) {
    scheduler_.reset();  // what it took is not known
    return sent;
  }
  note_published(now);
  return {};
}

int LimitPublisher::descriptor() {
  Lock lock(connection_mutex_);
  return scheduler_ ? scheduler_->descriptor() : -1;
}

void LimitPublisher::run() {
  milliseconds pause = kFirstPause;
  bool complained = false;
  while (true) {
    bool is_set = false;
    {
      Lock lock(wanted_mutex_);
      if (stop_) return;
      is_set = is_set_;
    }
    if (!is_set) {
      wait(-1, kUntilWoken);
      continue;
    }
    Result<void> done = {};
    {
      Lock lock(connection_mutex_);
      done = publish_difference();
    }
    if (!done) {
      if (!std::exchange(complained, true)) spdlog::warn("limits of pods cannot be set now: {}", done.error().text);
      wait(-1, pause);
      pause = std::min(pause * 2, kLongestPause);
      continue;
    }
    if (std::exchange(complained, false)) spdlog::info("the scheduler has the limits of pods again");
    pause = kFirstPause;
    wait(descriptor(), kUntilWoken);
  }
}

}  // namespace nvshare::kubernetes
