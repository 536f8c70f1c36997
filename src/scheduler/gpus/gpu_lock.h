// One scheduler per GPU on a machine: an flock on a file named after the GPU's UUID. It ends with the process that holds it.
//
// Whoever can open a file can lock it, so lock files are their owner's alone, in a folder of its own: root's in /run/nvshare-locks, a
// user's in /run/lock/nvshare-locks-UID, else /tmp/nvshare-locks-UID. Beside each lies a file GPU-....owner for everybody to read, which
// names the scheduler: a user's scheduler gives way to root's and to other users'; root's gives way to root's alone.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

class GpuLock {
 public:
  GpuLock() = default;

  // Takes the lock of one GPU. An error names the scheduler that has it, or says what failed.
  // `directory` (NVSHARE_LOCK_DIR) is created if need be, for this user alone to write; of somebody else's the subfolder user-UID is used,
  // but never by root. Empty: as above.
  static Result<GpuLock> acquire(const std::string& directory, const std::string& gpu_uuid, const std::string& runtime_dir);

  // Gives the lock up and leaves no file of it.
  void remove();

 private:
  GpuLock(FileDescriptor file, std::string path, std::string owner_path)
      : file_(std::move(file)), path_(std::move(path)), owner_path_(std::move(owner_path)) {}
  FileDescriptor file_;
  std::string path_, owner_path_;
};

}  // namespace nvshare::scheduler
