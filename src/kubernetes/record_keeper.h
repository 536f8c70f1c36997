// Writes down what a restart must not forget, on a thread of its own: whoever changes it waits for no disk, and a file that cannot be
// written (a full disk) is tried again until it can.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace nvshare::kubernetes {

class RecordKeeper {
 public:
  // `pause`: between two tries of a file that could not be written.
  explicit RecordKeeper(std::chrono::milliseconds pause = std::chrono::seconds(5));
  ~RecordKeeper();  // writes what has changed
  RecordKeeper(const RecordKeeper&) = delete;
  RecordKeeper& operator=(const RecordKeeper&) = delete;

  // A file, what it says now, and what it is to say: asked on the keeper's thread, after each change. Before the first changed().
  void keep(std::string path, std::string there, std::function<std::string()> text);
  void changed();  // any thread

 private:
  struct File {
    std::string path;
    std::string written;
    std::function<std::string()> text;
    std::string problem;  // that was told
  };
  void run();
  bool write(File& file);

  const std::chrono::milliseconds pause_;
  std::vector<File> files_;  // of the keeper's thread, after the first changed()
  std::mutex mutex_;
  std::condition_variable wake_;
  bool due_ = false;    // guarded by mutex_
  bool stop_ = false;   // guarded by mutex_
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
