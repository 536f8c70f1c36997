#include "scheduler/sockets/socket_guard.h"

#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kBetweenLooksNs = 1'000'000'000;  // whoever can write there may change something all the time
constexpr uint32_t kChanges = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

}  // namespace

SocketGuard::SocketGuard(EventLoop& loop, RuntimeDir& folder, std::function<void(FileDescriptor)> listener)
    : folder_(folder), listener_(std::move(listener)), events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), timer_(loop, [this] {
        look();
        watch_.resume();
      }) {
  if (!events_) return;
  watch_folder();
  watch_ = Watch(loop, events_.get(), [this] {
    watch_.pause();
    timer_.arm(std::max(monotonic_ns(), looked_at_ + kBetweenLooksNs));
  });
}

void SocketGuard::watch_folder() { inotify_add_watch(events_.get(), folder_.clients_folder().c_str(), kChanges); }

void SocketGuard::look() {
  char events[16384];
  while (::read(events_.get(), events, sizeof events) > 0) continue;
  looked_at_ = monotonic_ns();
  if (folder_.has_own_clients_socket()) return;
  Result<FileDescriptor> listener = folder_.listen_clients_again();
  watch_folder();
  spdlog::error(
      "the clients' socket in {} was removed or replaced by somebody else; {}. Programs that started meanwhile are not served here. "
      "Containers must have that folder mounted read-only",
      folder_.clients_folder(), listener ? "it was made anew" : listener.error().text);
  if (listener) {
    listener_(std::move(*listener));
  } else {
    timer_.arm(looked_at_ + kBetweenLooksNs);
  }
}

}  // namespace nvshare::scheduler
