#include "cli/own_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/descriptors.h"
#include "base/fd.h"
#include "protocol/codec.h"
#include "protocol/paths.h"

namespace nvshare::cli {
namespace {

constexpr uint64_t kReportBytesMax = 64u << 20;

Result<std::string> text_in(const FileDescriptor& memory, uint64_t bytes) {
  struct stat status {};
  if (!memory || fstat(memory.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes || bytes > kReportBytesMax)
    return error_format("the scheduler's answer came without its report");
  std::string text(bytes, 0);
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = pread(memory.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return error_format("cannot read the scheduler's report: %s", n < 0 ? strerror(errno) : "it is too short");
    done += static_cast<size_t>(n);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Result<std::string> ask(const std::string& runtime_directory, const protocol::AskOwn& question, int patience_ms = kOwnPatienceMs) {
  const std::string path = runtime_directory + protocol::kClientSocket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return error_format("socket path %s is too long", path.c_str());
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const FileDescriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!connection || connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return error_format("%s: %s", path.c_str(), strerror(errno));
  if (send_packet(connection.get(), protocol::encode(question).span(), {}, MSG_NOSIGNAL) < 0)
    return error_format("cannot send to %s: %s", path.c_str(), strerror(errno));
  pollfd readable{connection.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&readable, 1, patience_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return error_format("%s did not answer within %d ms", path.c_str(), patience_ms);
  protocol::Packet packet;
  Descriptors descriptors;
  const ssize_t length = receive_packet(connection.get(), packet.bytes, &descriptors, 0);
  if (length <= 0) return error_format("%s closed the connection without an answer", path.c_str());
  packet.length = static_cast<uint32_t>(length);
  if (const auto refused = protocol::decode<protocol::Refused>(packet.span())) return error_format("%.250s", refused->reason);
  const auto answer = protocol::decode<protocol::OwnReport>(packet.span());
  if (!answer) return error_format("%s: %.200s", path.c_str(), answer.error().text);
  return text_in(descriptors.count() == 1 ? descriptors.take(0) : FileDescriptor(), answer->bytes);
}

}  // namespace

Result<std::string> ask_own_line(const std::string& runtime_directory) { return ask(runtime_directory, {}); }

Result<protocol::admin::StatusReport> ask_own(const std::string& runtime_directory, int patience_ms) {
  auto line = ask(runtime_directory, {}, patience_ms);
  if (!line) return line.error();
  return protocol::admin::decode_status(*line);
}

Result<void> release_own(const std::string& runtime_directory, uint64_t tenant) {
  auto line = ask(runtime_directory, {static_cast<uint8_t>(protocol::OwnWish::kRelease), {}, tenant});
  if (!line) return line.error();
  return {};
}

}  // namespace nvshare::cli
