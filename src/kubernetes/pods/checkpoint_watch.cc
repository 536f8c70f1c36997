#include "kubernetes/pods/checkpoint_watch.h"

#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/nanoseconds.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

constexpr off_t kFileBytesMax = 64 << 20;
constexpr std::chrono::milliseconds kWithoutFolder{1000};

bool same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

CheckpointWatch::CheckpointWatch(LoopThread& loop, const std::string& kubelet_dir, ResourceNames resources, Read read,
                                 std::chrono::milliseconds look_interval)
    : loop_(loop),
      folder_(kubelet_dir),
      file_(kubelet_dir + "/" + kCheckpointName),
      resources_(std::move(resources)),
      read_(std::move(read)),
      look_interval_(look_interval),
      events_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  loop_.call([this] {
    events_watch_.emplace(loop_.loop(), events_.get(), [this] { take_events(); });
    next_look_.emplace(loop_.loop(), [this] { step(); });
    next_look_->arm(monotonic_ns());
  });
}

CheckpointWatch::~CheckpointWatch() {
  loop_.call([this] {
    events_watch_.reset();
    next_look_.reset();
  });
}

void CheckpointWatch::step() {
  // The kubelet writes another file and renames it; before the look, so that no change after it is missed.
  if (watch_ < 0) {
    watch_ = inotify_add_watch(events_.get(), folder_.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
  }
  next_look_->arm(monotonic_ns() + nanoseconds_of(watch_ >= 0 ? look_interval_ : std::min(look_interval_, kWithoutFolder)));
  look();
}

void CheckpointWatch::look() {
  const auto failed = [&](const std::string& why) {
    if (problem_ != why) spdlog::warn("{}: {}; what pods were granted is known as before", file_, why);
    problem_ = why;
  };
  struct stat now {};
  if (stat(file_.c_str(), &now) != 0) {
    if (errno != ENOENT) return failed(strerror(errno));
    // No pod was given a device yet, or the kubelet is being set up anew.
    if (std::exchange(problem_, "absent") != "absent")
      spdlog::info("{}: it is not there; what pods were granted is known as before", file_);
    return;
  }
  if (same(now, seen_)) return;
  if (now.st_size > kFileBytesMax) return failed("it is larger than 64 MiB");
  auto text = read_file(file_);
  if (!text) return failed(text.error().text);
  seen_ = now;
  Result<Checkpoint> checkpoint = read_checkpoint(*text, resources_);
  if (!checkpoint) return failed(checkpoint.error().text);
  problem_.clear();
  if (checkpoint->unread != unread_) {
    for (const std::string& why : checkpoint->unread) spdlog::warn("{}: {}; what was known of its pod stays", file_, why);
    unread_ = checkpoint->unread;
  }
  read_(*checkpoint);
}

void CheckpointWatch::take_events() {
  alignas(inotify_event) char buffer[16384];
  bool changed = false;
  for (ssize_t length = 0; (length = read(events_.get(), buffer, sizeof buffer)) > 0;) {
    for (ssize_t at = 0; at < length;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof *event + event->len);
      if ((event->mask & IN_MOVE_SELF) != 0) inotify_rm_watch(events_.get(), watch_);
      if ((event->mask & IN_IGNORED) != 0) watch_ = -1;
      changed = changed || event->len == 0 || std::strcmp(event->name, kCheckpointName) == 0;
    }
  }
  if (changed) step();
}

}  // namespace nvshare::kubernetes
