// A folder of its own in memory, for the files of a simulated scheduler; gone at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace nvshare::simulation {

class Folder {
 public:
  Folder() {
    char path[] = "/dev/shm/nvshare-simulation-XXXXXX";
    if (mkdtemp(path) != nullptr) path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace nvshare::simulation
