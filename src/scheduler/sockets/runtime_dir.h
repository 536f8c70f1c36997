// The folder that the scheduler's sockets live in, and the proof that no other scheduler serves it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

using FileId = std::pair<uint64_t, uint64_t>;  // device and number; zeros: there is none

class RuntimeDir {
 public:
  // Creates what is missing and takes the folder. An error names the scheduler that has it, or whom the folder belongs to.
  static Result<RuntimeDir> open(const std::string& path, std::chrono::nanoseconds patience = {});

  RuntimeDir(RuntimeDir&&) = default;
  RuntimeDir& operator=(RuntimeDir&&) = delete;
  ~RuntimeDir();  // removes the sockets

  // Non-blocking listening sockets, in place of what a scheduler that died left behind. Refuses if somebody listens there.
  Result<FileDescriptor> listen_clients();  // SOCK_SEQPACKET, for everybody
  Result<FileDescriptor> listen_admin();    // SOCK_STREAM, in a folder for the owner
  // The clients' socket anew, whatever is in its place. And whether what is there is the one that was made last.
  Result<FileDescriptor> listen_clients_again();
  bool has_own_clients_socket() const;

  const std::string& path() const { return path_; }
  std::string clients_folder() const;
  std::string known_clients_file() const { return path_ + "/clients"; }
  std::string tenants_file() const { return path_ + "/tenants"; }
  std::string jobs_folder() const;

 private:
  RuntimeDir(std::string path, FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  struct Listener {
    FileDescriptor socket;
    FileId file;
  };
  // Made in our own folder and then moved: where others can write, a link in its place would have its target's permissions changed, and
  // another socket would be taken for ours. `whoever_listens`: also where somebody does, who is then found no more.
  Result<Listener> listen_at(const std::string& path, int type, mode_t mode, bool whoever_listens) const;
  Result<FileDescriptor> listen_clients(bool whoever_listens);

  std::string path_;
  FileId clients_socket_;
  FileDescriptor lock_;
};

}  // namespace nvshare::scheduler
