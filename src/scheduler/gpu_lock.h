// One scheduler per GPU on a machine: an flock on a file named after the GPU's UUID. It ends with the process that holds it.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

class GpuLock {
 public:
  GpuLock() = default;

  // Takes the lock of one GPU. An error names the scheduler that has it, or says what failed.
  // `directory` is created (world-writable, sticky) if need be; empty means /run/lock/nvshare, else /tmp/nvshare-lock.
  static Result<GpuLock> acquire(const std::string& directory, const std::string& gpu_uuid, const std::string& runtime_dir);

 private:
  explicit GpuLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace nvshare::scheduler
