#include "kubernetes/registrar.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace nvshare::kubernetes {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kKubeletSocket = "kubelet.sock";
constexpr milliseconds kFirstRetry{10};
constexpr milliseconds kLongestRetry{1000};

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
    wait(waits_for_kubelet ? look_interval_ : std::min(std::max(pause_, kFirstRetry), look_interval_));
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
      bool made = (event->mask & (IN_CREATE | IN_MOVED_TO)) != 0 && event->len > 0 && kKubeletSocket == event->name;
      if (made || (event->mask & IN_Q_OVERFLOW) != 0) {
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
    if (auto ok = hooks_.serve(); !ok) {
      spdlog::error("{}", ok.error().text);
      pause_ = std::clamp(pause_ * 2, kFirstRetry, kLongestRetry);
      return;
    }
  }
  if (announced_ && hooks_.heard()) heard_at_ = now;
  if (announced_ && now - heard_at_ > unheard_patience_) {
    spdlog::warn("the kubelet does not listen to us; registering again");
    announced_ = false;
  }
  if (announced_) return;
  if (access((folder_ + "/" + std::string(kKubeletSocket)).c_str(), F_OK) != 0) {
    pause_ = look_interval_;  // an event tells when it appears
    return;
  }
  if (auto ok = hooks_.announce(); !ok) {
    if (!complained_) spdlog::warn("cannot register with the kubelet yet: {}", ok.error().text);
    complained_ = true;
    pause_ = std::clamp(pause_ * 2, kFirstRetry, kLongestRetry);
    return;
  }
  announced_ = true;
  complained_ = false;
  heard_at_ = Clock::now();
  ++announcements_;
}

void Registrar::wait(milliseconds longest) {
  pollfd sources[] = {{wake_.get(), POLLIN, 0}, {events_.get(), POLLIN, 0}};
  poll(sources, 2, static_cast<int>(longest.count()));
}

}  // namespace nvshare::kubernetes
