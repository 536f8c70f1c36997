// Writes down what a restart must not forget, on a thread of its own: a thread that changes it waits for no disk, and a file that cannot be
// written (a full disk) is tried again until it can.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace nvshare::kubernetes {

class StateStore {
 public:
  // `pause`: between two tries of a file that could not be written.
  explicit StateStore(std::chrono::milliseconds pause = std::chrono::seconds(5));
  ~StateStore();  // writes what has changed
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // A file, what it says now, and what it is to say: asked on the store's thread, after each change. Before the first changed().
  void add(std::string path, std::string there, std::function<std::string()> text);
  void changed();  // any thread

 private:
  struct File {
    std::string path;
    std::string written;
    std::function<std::string()> text;
    std::string problem;  // that was logged
  };
  void run();
  bool write(File& file);

  const std::chrono::milliseconds pause_;
  std::vector<File> files_;  // of the store's thread, after the first changed()
  Mutex mutex_;
  Condition wake_;
  bool due_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
