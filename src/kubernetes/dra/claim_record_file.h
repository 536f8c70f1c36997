// The record of claims on disk. Two drivers share it while a new one takes the old one's place: whoever changes it holds its lock and has
// read what the other one wrote. Not thread-safe; processes are told apart by their open files, so two objects in one process are, too.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "kubernetes/dra/claim_record.h"

namespace nvshare::kubernetes::dra {

class ClaimRecordFile {
 public:
  // The folder is made if it is missing (one level). An error: its lock's file cannot be opened.
  static Result<ClaimRecordFile> open(const std::string& folder);

  // Held until it is destroyed, which must be before the file is.
  class Held {
   public:
    explicit Held(int lock) : lock_(lock) {}
    ~Held();
    Held(Held&& other) noexcept : lock_(other.lock_) { other.lock_ = -1; }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Held& operator=(Held&&) = delete;

   private:
    int lock_;
  };
  // An error: another driver has held it for that long.
  Result<Held> hold(std::chrono::milliseconds patience) const;

  // What the record says; nothing: no more than when it was last read or written here, or there is none. A record of which entries were
  // left out is saved beside it, for people.
  Result<std::optional<ClaimRecord>> read_if_changed();
  // While it is held.
  Result<void> write(const std::map<std::string, Claim>& claims);

  const std::string& path() const { return path_; }

 private:
  // Of one content: a file is replaced, never changed.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    int64_t changed_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  ClaimRecordFile(std::string path, FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::optional<Identity> identity() const;

  std::string path_;
  FileDescriptor lock_;
  std::optional<Identity> known_;
};

}  // namespace nvshare::kubernetes::dra
