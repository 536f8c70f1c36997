// Talks to a scheduler's admin socket: one JSON object per line each way (protocol/admin.h). Blocking, with a time limit. Not thread-safe.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::cli {

class AdminClient {
 public:
  // `runtime_directory` as in protocol/paths.h. The error says why nobody answers (nothing there, not allowed, not listening).
  static Result<AdminClient> open(const std::string& runtime_directory);

  // Sends one request and waits up to `timeout_ms` for the line that answers it, for protocol/admin.h's decode functions.
  Result<std::string> ask(const protocol::admin::Request& request, int timeout_ms = 5000);

  // The same, decoded.
  Result<protocol::admin::StatusReport> status();

 private:
  explicit AdminClient(FileDescriptor socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  Result<std::string> read_line(int timeout_ms);

  FileDescriptor socket_;
  std::string path_;
  std::string received_;  // beyond the last line that was taken
};

}  // namespace nvshare::cli
