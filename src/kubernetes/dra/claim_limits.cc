#include "kubernetes/dra/claim_limits.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace nvshare::kubernetes::dra {
namespace {

using protocol::admin::Client;
using protocol::admin::kPodsMax;
using protocol::admin::PodRequest;
using protocol::admin::PodsRequest;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kUntilWoken{60'000};

}  // namespace

ClaimLimits::ClaimLimits(std::string runtime_dir, const Pods& all)
    : runtime_dir_(std::move(runtime_dir)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const PodRequest& pod : all) all_[pod.uid] = pod;
  thread_ = std::thread([this] { run(); });
}

ClaimLimits::~ClaimLimits() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

Result<void> ClaimLimits::send(const Pods& pods) {
  for (size_t first = 0; first < pods.size(); first += kPodsMax) {
    PodsRequest request;
    request.pods.assign(pods.begin() + static_cast<ptrdiff_t>(first),
                        pods.begin() + static_cast<ptrdiff_t>(std::min(first + kPodsMax, pods.size())));
    Result<std::string> line = scheduler_->ask(request);
    Result<void> taken = line ? protocol::admin::decode_ok(*line) : Result<void>(line.error());
    if (!taken) {
      scheduler_.reset();  // what came of it is not known
      return taken;
    }
  }
  for (const PodRequest& pod : pods) {
    if (pod.gone) all_.erase(pod.uid);
  }
  return {};
}

Result<void> ClaimLimits::connect() {
  Result<Client> opened = Client::open(runtime_dir_);
  if (!opened) return opened.error();
  scheduler_.emplace(std::move(*opened));
  Pods all;
  for (const auto& [uid, pod] : all_) all.push_back(pod);
  return send(all);
}

Result<void> ClaimLimits::tell(const Pods& changed) {
  std::lock_guard lock(mutex_);
  for (const PodRequest& pod : changed) all_[pod.uid] = pod;
  // A connection may have ended since it was used last: then a new one is told everything, these included.
  if (scheduler_ && send(changed)) return {};
  Result<void> told = connect();
  eventfd_write(wake_.get(), 1);  // there is another connection to look at, or none
  return told;
}

void ClaimLimits::wait(int scheduler, milliseconds longest) {
  pollfd sources[] = {{wake_.get(), POLLIN, 0}, {scheduler, POLLIN, 0}};  // a descriptor of -1 is left out
  poll(sources, 2, static_cast<int>(longest.count()));
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
}

void ClaimLimits::run() {
  milliseconds pause = kFirstPause;
  bool complained = false;
  while (true) {
    int scheduler = -1;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      if (scheduler_) {
        // Between two requests only the end of the connection can be read; with the mutex held there is none under way.
        pollfd ended{scheduler_->descriptor(), POLLIN, 0};
        if (poll(&ended, 1, 0) > 0) scheduler_.reset();
      }
      if (!scheduler_) {
        if (auto told = connect(); !told) {
          if (!std::exchange(complained, true)) spdlog::warn("limits of claims cannot be set now: {}", told.error().text);
        } else if (std::exchange(complained, false)) {
          spdlog::info("the scheduler has the limits of claims again");
        }
      }
      if (scheduler_) scheduler = scheduler_->descriptor();
    }
    pause = scheduler < 0 ? std::min(pause * 2, kLongestPause) : kFirstPause;
    wait(scheduler, scheduler < 0 ? pause : kUntilWoken);
  }
}

}  // namespace nvshare::kubernetes::dra
