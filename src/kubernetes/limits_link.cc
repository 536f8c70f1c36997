#include "kubernetes/limits_link.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <optional>

namespace nvshare::kubernetes {
namespace {

using protocol::admin::Client;
using protocol::admin::PodRequest;
using protocol::admin::PodsRequest;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kForEver{60'000};

}  // namespace

LimitsLink::LimitsLink(std::string runtime_dir)
    : runtime_dir_(std::move(runtime_dir)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

LimitsLink::~LimitsLink() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void LimitsLink::change(const Pods& pods) {
  {
    std::lock_guard lock(mutex_);
    for (const PodRequest& pod : pods) {
      changed_[pod.uid] = pod;
      if (pod.gone) {
        all_.erase(pod.uid);
      } else {
        all_[pod.uid] = pod;
      }
    }
  }
  eventfd_write(wake_.get(), 1);
}

void LimitsLink::replace(const Pods& all) {
  {
    std::lock_guard lock(mutex_);
    std::map<std::string, PodRequest> before = std::move(all_);
    all_.clear();
    for (const PodRequest& pod : all) {
      before.erase(pod.uid);
      all_[pod.uid] = changed_[pod.uid] = pod;
    }
    for (auto& [uid, pod] : before) {
      pod.gone = true;
      changed_[uid] = pod;
    }
    whole_due_ = whole_due_ || !known_;
    known_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

void LimitsLink::begin() {
  {
    std::lock_guard lock(mutex_);
    begun_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

void LimitsLink::wait(int scheduler, milliseconds longest) {
  pollfd sources[] = {{wake_.get(), POLLIN, 0}, {scheduler, POLLIN, 0}};  // a descriptor of -1 is left out
  poll(sources, 2, static_cast<int>(longest.count()));
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
}

// In as many requests as it takes. A scheduler of before `list` takes each by itself, and forgets nobody.
Result<void> LimitsLink::send(Client& scheduler, const Pods& pods, bool complete) {
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

void LimitsLink::run() {
  std::optional<Client> scheduler;
  milliseconds pause = kFirstPause;
  bool complained = false;
  const auto failed = [&](const char* why) {
    if (!std::exchange(complained, true)) spdlog::warn("limits of pods cannot be set now: {}", why);
    scheduler.reset();
    wait(-1, pause);
    pause = std::min(pause * 2, kLongestPause);
  };
  while (true) {
    bool sends = false;
    bool known = false;
    std::map<std::string, PodRequest> pods;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      known = known_;
      sends = known_ || begun_;
      if (sends && std::exchange(whole_due_, false)) scheduler.reset();
      if (sends && scheduler) pods = std::exchange(changed_, {});
    }
    if (!sends) {
      wait(-1, kForEver);
      continue;
    }
    if (scheduler) {
      pollfd ended{scheduler->descriptor(), POLLIN, 0};
      if (poll(&ended, 1, 0) > 0) {
        scheduler.reset();  // and everything again
        continue;
      }
      if (pods.empty()) {
        wait(scheduler->descriptor(), kForEver);
        continue;
      }
    }
    const bool complete = !scheduler && known;
    if (!scheduler) {
      auto opened = Client::open(runtime_dir_);
      if (!opened) {
        failed(opened.error().text);
        continue;
      }
      scheduler.emplace(std::move(*opened));
      std::lock_guard lock(mutex_);
      pods = all_;
      changed_.clear();
    }
    Pods list;
    for (auto& [uid, pod] : pods) list.push_back(std::move(pod));
    if (auto ok = send(*scheduler, list, complete); !ok) {
      failed(ok.error().text);
      continue;
    }
    if (complained) spdlog::info("the scheduler has the limits of pods again");
    complained = false;
    pause = kFirstPause;
  }
}

}  // namespace nvshare::kubernetes
