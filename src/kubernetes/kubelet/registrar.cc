#include "kubernetes/kubelet/registrar.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace nvshare::kubernetes {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kKubeletSocket = "kubelet.sock";
constexpr milliseconds kFirstRetry{10};
constexpr milliseconds kLongestRetry{1000};
// A socket goes before, with or after the kubelet's end of the connection.
constexpr milliseconds kAfterAnEnd[] = {milliseconds(1), milliseconds(50), milliseconds(500), milliseconds(3000)};

}  // namespace

Registrar::Registrar(std::string kubelet_dir, Hooks hooks, milliseconds look_interval, milliseconds unheard_patience)
    : folder_(std::move(kubelet_dir)),
      hooks_(std::move(hooks)),
      look_interval_(look_interval),
      unheard_patience_(unheard_patience),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      events_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      thread_([this] { run(); }) {}

Registrar::~Registrar() { stop(); }

void Registrar::stop() {
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Registrar::run() {
  while (!stop_) {
    if (watch_ >= 0 || watch_folder()) {
      take_events();
      look();
    }
    bool waits_for_kubelet = watch_ >= 0 && announced_;
    wait(waits_for_kubelet ? until_next_look() : std::min(std::max(pause_, kFirstRetry), look_interval_));
  }
}

bool Registrar::watch_folder() {
  watch_ = inotify_add_watch(events_.get(), folder_.c_str(),
                             IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
  if (watch_ >= 0) {
    complained_ = false;
    announced_ = false;
    pause_ = kFirstRetry;
    return true;
  }
  if (!complained_) spdlog::warn("waiting for the kubelet's folder {}: {}", folder_, strerror(errno));
  complained_ = true;
  pause_ = kLongestRetry;
  return false;
}

void Registrar::take_events() {
  alignas(inotify_event) char buffer[16384];
  while (true) {
    ssize_t length = read(events_.get(), buffer, sizeof buffer);
    if (length <= 0) return;
    for (ssize_t at = 0; at < length;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof *event + event->len);
      if ((event->mask & IN_IGNORED) != 0) {
        watch_ = -1;  // the folder is gone; wait for a new one
      } else if ((event->mask & IN_MOVE_SELF) != 0) {
        inotify_rm_watch(events_.get(), watch_);
      }
      const std::string_view name = event->len > 0 ? event->name : "";
      const bool gone = (event->mask & (IN_DELETE | IN_MOVED_FROM)) != 0 && hooks_.another && hooks_.another(name);
      if (gone && announced_) {
        successor_.clear();
        announce_again_later();
      }
      const bool came = (event->mask & (IN_CREATE | IN_MOVED_TO)) != 0 && hooks_.another && hooks_.another(name);
      if (came && announced_) {
        successor_ = name;
        again_at_.clear();
      }
      // The next one is another, also where it has the file number of this one and comes within the same tick of the file system's clock.
      if ((event->mask & (IN_DELETE | IN_MOVED_FROM)) != 0 && kKubeletSocket == name) announced_to_ = {};
      bool made = (event->mask & (IN_CREATE | IN_MOVED_TO)) != 0 && kKubeletSocket == name;
      // The event of a kubelet that this plugin has registered with already, when it made its sockets anew, says nothing new.
      const bool is_new = made && (!announced_ || kubelet() != announced_to_);
      if (is_new || (event->mask & IN_Q_OVERFLOW) != 0) {
        again_at_.clear();
        successor_.clear();
        announced_ = false;
        pause_ = kFirstRetry;
      }
    }
  }
}

void Registrar::look() {
  auto now = Clock::now();
  if (!hooks_.serving()) {
    announced_ = false;
    served_anew_ = announcements_ > 0;
    if (auto ok = hooks_.serve(); !ok) {
      spdlog::error("{}", ok.error().text);
      pause_ = std::clamp(pause_ * 2, kFirstRetry, kLongestRetry);
      return;
    }
  }
  if (announced_ && hooks_.heard()) heard_at_ = now;
  if (announced_ && successor_.empty() && now - heard_at_ > unheard_patience_) {
    spdlog::warn("the kubelet does not listen to us; registering again");
    announced_ = false;
  }
  const auto due = [&](Clock::time_point at) { return at <= now; };
  if (std::erase_if(again_at_, due) > 0) announced_ = false;
  if (announced_) return;
  const Identity to = kubelet();
  if (to == Identity()) {
    pause_ = look_interval_;  // an event comes when it appears
    return;
  }
  if (auto ok = hooks_.announce(); !ok) {
    if (!complained_) spdlog::warn("cannot register with the kubelet yet: {}", ok.error().text);
    complained_ = true;
    pause_ = std::clamp(pause_ * 2, kFirstRetry, kLongestRetry);
    return;
  }
  announced_ = true;
  // That kubelet may notice only now that the sockets before have gone.
  if (std::exchange(served_anew_, false) && to == announced_to_) announce_again_later();
  announced_to_ = to;
  complained_ = false;
  heard_at_ = Clock::now();
  ++announcements_;
}

void Registrar::announce_again_later() {
  again_at_.clear();
  for (milliseconds after : kAfterAnEnd) again_at_.push_back(Clock::now() + after);
}

milliseconds Registrar::until_next_look() const {
  milliseconds longest = look_interval_;
  for (Clock::time_point at : again_at_) {
    longest = std::clamp(std::chrono::ceil<milliseconds>(at - Clock::now()), milliseconds(0), longest);
  }
  return longest;
}

Registrar::Identity Registrar::kubelet() const {
  struct stat status {};
  if (stat((folder_ + "/" + std::string(kKubeletSocket)).c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
}

void Registrar::wait(milliseconds longest) {
  pollfd sources[] = {{wake_.get(), POLLIN, 0}, {events_.get(), POLLIN, 0}};
  poll(sources, 2, static_cast<int>(longest.count()));
}

}  // namespace nvshare::kubernetes
