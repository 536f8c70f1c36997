#include "cli/mps_directory.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstring>
#include <span>

#include "base/fd.h"
#include "base/printable.h"
#include "protocol/codec.h"
#include "protocol/paths.h"

namespace nvshare::cli {
namespace {

constexpr timeval kPatience{20, 0};

FileDescriptor connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  return socket;
}

}  // namespace

MpsDirectory ask_for_mps(const std::string& runtime_directory, const std::string& trust_group) {
  // Without a name it is answered by schedulers of the version before, too.
  constexpr uint16_t kWithoutGroups = 2;
  const auto none = [&](const char* why) { return MpsDirectory{"", trust_group.empty() ? "" : why}; };
  const FileDescriptor socket = connect_to(runtime_directory + protocol::kClientSocket);
  if (!socket) return none("the scheduler cannot be reached");
  protocol::AskMps asks{};
  std::strncpy(asks.group, trust_group.c_str(), sizeof asks.group - 1);
  const protocol::Packet question = trust_group.empty() ? protocol::encode(asks, kWithoutGroups) : protocol::encode(asks);
  if (send(socket.get(), question.bytes, question.length, MSG_NOSIGNAL) != static_cast<ssize_t>(question.length))
    return none("the scheduler cannot be asked");
  std::byte bytes[protocol::kMessageBytesMax];
  const ssize_t length = recv(socket.get(), bytes, sizeof bytes, 0);
  if (length < 0) return {"", "the scheduler has not answered in time"};
  if (length == 0) return none("the scheduler has not answered");
  const auto answer = protocol::decode<protocol::MpsGroup>({bytes, static_cast<size_t>(length)});
  if (!answer) return none("this scheduler is of a release that knows no trust groups");  // it refuses what it does not know
  switch (static_cast<protocol::MpsState>(answer->state)) {
    case protocol::MpsState::kOff:
      return none("the scheduler's setting mps is off");
    case protocol::MpsState::kServes:
      return {answer->directory, ""};
    case protocol::MpsState::kCannot:
      return {"", printable(answer->reason)};
  }
  return {};
}

}  // namespace nvshare::cli
