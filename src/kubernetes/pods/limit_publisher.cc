#include "kubernetes/pods/limit_publisher.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {
namespace {

using protocol::admin::AdminConnection;
using protocol::admin::PodRequest;
using protocol::admin::PodsRequest;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1000};
constexpr int64_t kAnswerPatience_ns = 5'000'000'000;

bool has_ended(const AdminConnection& scheduler) {
  pollfd ended{scheduler.descriptor(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;  // between two requests only the end of the connection can be read
}

}  // namespace

LimitPublisher::LimitPublisher(LoopThread& loop, std::string runtime_dir)
    : loop_(loop), runtime_dir_(std::move(runtime_dir)), pause_(kFirstPause) {
  loop_.call([this] {
    retry_.emplace(loop_.loop(), [this] { begin_round(); });
    late_.emplace(loop_.loop(), [this] {
      end_round(error_format("%.120s: the scheduler did not answer within %lld ms", runtime_dir_.c_str(),
                             static_cast<long long>(kAnswerPatience_ns / 1'000'000)));
    });
  });
}

LimitPublisher::~LimitPublisher() {
  loop_.call([this] {
    disconnect();
    retry_.reset();
    late_.reset();
    if (round_) std::move(round_->waiters.begin(), round_->waiters.end(), std::back_inserter(waiters_));
    for (const Waiter& waiter : waiters_) waiter->set_value(error_format("this program ends"));
  });
}

void LimitPublisher::set_wanted(const Pods& pods, bool complete) {
  {
    Lock lock(mutex_);
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
  loop_.post([this] { begin_round(); });
}

Result<void> LimitPublisher::publish() {
  const auto waiter = std::make_shared<std::promise<Result<void>>>();
  std::future<Result<void>> done = waiter->get_future();
  loop_.post([this, waiter] {
    waiters_.push_back(waiter);
    begin_round();
  });
  return done.get();
}

LimitPublisher::Difference LimitPublisher::difference() {
  Lock lock(mutex_);
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
  Lock lock(mutex_);
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
  if (sent.complete) std::erase_if(gone_, [this](const std::string& uid) { return !published_.contains(uid); });
}

// ---- rounds ----

void LimitPublisher::begin_round() {
  again_ = again_ || round_;
  if (round_) return;
  {
    Lock lock(mutex_);
    if (!is_set_ && waiters_.empty()) return;
  }
  again_ = false;
  retry_->cancel();
  round_ = Round{};
  round_->waiters.swap(waiters_);
  send_difference();
}

void LimitPublisher::send_difference() {
  late_->arm(monotonic_ns() + kAnswerPatience_ns);  // first of all: a round always ends
  round_->was_connected = scheduler_.has_value();
  if (scheduler_ && has_ended(*scheduler_)) disconnect();
  const bool is_new = !scheduler_;
  if (is_new) {
    Result<AdminConnection> opened = AdminConnection::open(runtime_dir_, AdminConnection::Mode::kNonBlocking);
    if (!opened) return end_round(opened.error());
    scheduler_.emplace(std::move(*opened));
    watch_.emplace(
        loop_.loop(), scheduler_->descriptor(), [this] { take_answer(); }, [this] { send_rest(); });
    published_.clear();
    published_complete_ = false;
  }
  round_->difference = difference();
  round_->sent = 0;
  // A new connection is asked in any case: one that is open and never answers is no scheduler.
  if (round_->difference.pods.empty() && !round_->difference.complete && !is_new) return end_round({});
  send_part();
}

// A scheduler of before `list` takes each part by itself, and forgets no pod.
void LimitPublisher::send_part() {
  using protocol::admin::kPodsMax;
  const auto& [pods, complete] = round_->difference;
  const bool fits = pods.size() <= kPodsMax;
  const size_t first = round_->sent;
  const size_t end = std::min(first + kPodsMax, pods.size());
  PodsRequest request{{pods.begin() + static_cast<ptrdiff_t>(first), pods.begin() + static_cast<ptrdiff_t>(end)}, complete && fits};
  if (complete && !fits && first == 0) request.list = PodsRequest::List::kFirst;
  if (complete && !fits && end == pods.size()) request.list = PodsRequest::List::kLast;
  round_->sent = end;
  late_->arm(monotonic_ns() + kAnswerPatience_ns);
  if (auto ok = scheduler_->begin(request); !ok) return end_round(ok);
  send_rest();
}

void LimitPublisher::send_rest() {
  if (!round_) return;
  Result<bool> all = scheduler_->go_on();
  if (!all) return end_round(all.error());
  if (!*all) watch_->want_writable();
}

void LimitPublisher::take_answer() {
  if (!round_) {
    if (!has_ended(*scheduler_)) return;
    disconnect();
    return begin_round();
  }
  Result<std::optional<std::string>> line = scheduler_->take();
  if (!line) return end_round(line.error());
  if (!*line) return;
  if (auto taken = protocol::admin::decode_ok(**line); !taken) return end_round(taken);
  if (round_->sent < round_->difference.pods.size()) return send_part();
  note_published(round_->difference);
  end_round({});
}

void LimitPublisher::disconnect() {
  watch_.reset();
  scheduler_.reset();
}

void LimitPublisher::end_round(const Result<void>& done) {
  late_->cancel();
  if (!done) {
    disconnect();  // what it took is not known
    // The scheduler that was there may have ended meanwhile; another one may be there already.
    if (!round_->waiters.empty() && round_->was_connected && !std::exchange(round_->is_second, true)) return send_difference();
  }
  const std::vector<Waiter> waiters = std::move(round_->waiters);
  round_.reset();
  note(done);
  for (const Waiter& waiter : waiters) waiter->set_value(done);
}

// Says so, and when the next round is due.
void LimitPublisher::note(const Result<void>& done) {
  if (!done) {
    if (!std::exchange(complained_, true)) spdlog::warn("limits of pods cannot be set now: {}", done.error().text);
    retry_->arm(monotonic_ns() + nanoseconds_of(pause_));
    pause_ = std::min(pause_ * 2, kLongestPause);
  } else {
    if (std::exchange(complained_, false)) spdlog::info("the scheduler has the limits of pods again");
    pause_ = kFirstPause;
  }
  if (again_ || !waiters_.empty()) retry_->arm(monotonic_ns());
}

}  // namespace nvshare::kubernetes
