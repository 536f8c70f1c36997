// Talks to a scheduler's admin socket: one JSON object per line each way (protocol/admin.h). Blocking, with a time limit, but where its
// caller wants neither: begin(), go_on() and take() then never wait. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "protocol/admin.h"

namespace nvshare::protocol::admin {

class AdminConnection {
 public:
  // `runtime_directory` as in protocol/paths.h. The error says why nobody answers (nothing there, not allowed, not listening).
  enum class Mode { kBlocking, kNonBlocking };
  static Result<AdminConnection> open(const std::string& runtime_directory, Mode mode = Mode::kBlocking);

  // Sends one request and waits up to `timeout_ms` for the line that answers it, for protocol/admin.h's decode functions.
  Result<std::string> ask(const protocol::admin::Request& request, int timeout_ms = 5000);

  // The same, decoded.
  Result<protocol::admin::StatusReport> status();

  // ask() in two parts, for an answer that may be long in coming: sends one request, and takes the line that answers it if it is there.
  // Of a connection that does not block, go_on() sends what did not fit yet, once the descriptor is writable; true: all is sent.
  Result<void> begin(const protocol::admin::Request& request);
  Result<bool> go_on();
  Result<std::optional<std::string>> take();

  // Readable when more of an answer is there, or the scheduler has closed the connection; between two requests nothing else comes.
  int descriptor() const { return socket_.get(); }

 private:
  explicit AdminConnection(FileDescriptor socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  Result<std::string> read_line(int timeout_ms);
  std::optional<std::string> line_there();
  Result<void> receive();  // what has come, or waits for some

  FileDescriptor socket_;
  std::string path_;
  std::string unsent_;    // of the last request
  std::string received_;  // beyond the last line that was taken
};

}  // namespace nvshare::protocol::admin
