#include "kubernetes/pods/state_store.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/nanoseconds.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes {

StateStore::StateStore(std::chrono::milliseconds pause) : pause_(pause), thread_([this] { run(); }) {}

StateStore::~StateStore() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void StateStore::add(std::string path, std::string there, std::function<std::string()> text) {
  files_.push_back({std::move(path), std::move(there), std::move(text), ""});
}

void StateStore::changed() {
  {
    Lock lock(mutex_);
    due_ = true;
  }
  wake_.notify_one();
}

void StateStore::run() {
  Lock lock(mutex_);
  for (bool stops = false; !stops;) {
    wake_.wait(mutex_, [this]() REQUIRES(mutex_) { return stop_ || due_; });
    due_ = false;
    stops = stop_;
    lock.unlock();
    bool all_written = true;
    for (File& file : files_) all_written = write(file) && all_written;
    lock.lock();
    if (all_written || stops) continue;
    wake_.wait_for(mutex_, nanoseconds_of(pause_), [this]() REQUIRES(mutex_) { return stop_; });
    due_ = true;
  }
}

bool StateStore::write(File& file) {
  std::string text = file.text();
  if (text == file.written) return true;
  if (auto ok = write_file_atomically(file.path, text); !ok) {
    if (std::exchange(file.problem, ok.error().text) != ok.error().text) spdlog::warn("{}; it is tried again", ok.error().text);
    return false;
  }
  file.written = std::move(text);
  if (!std::exchange(file.problem, "").empty()) spdlog::info("{} is written again", file.path);
  return true;
}

}  // namespace nvshare::kubernetes
