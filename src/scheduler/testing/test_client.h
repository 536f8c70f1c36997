// For tests: clients of a scheduler as processes of their own, played by the test. Each is a forked child that passes packets between
// the scheduler's socket and the test, so that the scheduler sees a different process for each client, and the test can kill it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/descriptors.h"
#include "base/fd.h"
#include "protocol/codec.h"

namespace nvshare::scheduler {

inline constexpr std::chrono::milliseconds kPatience{20'000};  // for what must happen; only a failing test waits so long

class TestClient {
 public:
  // Fork before threads exist: before the test's daemon starts. `socket_path` is what connect() connects to.
  // With `forks`, connect() also leaves a forked child behind that holds the socket and outlives the client by up to a minute.
  explicit TestClient(const std::string& socket_path, bool forks = false);
  ~TestClient();  // kills it
  TestClient(TestClient&&) = default;
  TestClient& operator=(TestClient&&) = delete;

  pid_t pid() const { return pid_; }
  void connect();  // again, if it was connected
  void kill(int signal);
  void wait_for_death();  // after kill(SIGKILL)

  template <typename Payload>
  void send(const Payload& payload, const Descriptors& descriptors = {}) {
    send_packet(protocol::encode(payload), descriptors);
  }
  void send_packet(const protocol::Packet& packet, const Descriptors& descriptors = {});

  // The next message of this type; others before it are thrown away. Nothing after kPatience, or when the scheduler closed.
  template <typename Payload>
  std::optional<Payload> expect() {
    while (auto packet = receive(kPatience)) {
      auto type = protocol::decode_type(packet->span());
      if (!type || *type != protocol::TypeOf<Payload>::value) continue;
      auto payload = protocol::decode<Payload>(packet->span());
      if (payload) return *payload;
    }
    return std::nullopt;
  }
  // Those that came with the last message.
  Descriptors& received() { return received_; }
  // Whether one of this type comes within the time.
  template <typename Payload>
  bool comes_within(std::chrono::milliseconds time) {
    auto deadline = std::chrono::steady_clock::now() + time;
    while (true) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      auto packet = left.count() > 0 ? receive(left) : std::nullopt;
      if (!packet) return false;
      auto type = protocol::decode_type(packet->span());
      if (type && *type == protocol::TypeOf<Payload>::value) return true;
    }
  }
  // Whether the scheduler closes the connection; what it sent before is thrown away.
  bool expect_close();

  // Register, Registered.
  std::optional<protocol::Registered> join(const protocol::Register& message) {
    connect();
    send(message);
    return expect<protocol::Registered>();
  }

 private:
  // Nothing when the time has passed, or (`closed_`) the connection ended.
  std::optional<protocol::Packet> receive(std::chrono::milliseconds time);

  pid_t pid_ = -1;
  FileDescriptor control_;
  Descriptors received_;
  bool closed_ = false;
};

// A valid Register for GPU number `gpu` of 16 GiB.
protocol::Register test_registration(uint64_t allocated, uint8_t gpu = 1);

// One admin request, one answer, without newlines; empty if the scheduler cannot be reached.
FileDescriptor connect_admin(const std::string& runtime_dir);
std::string ask_admin(const std::string& runtime_dir, const std::string& request);

// A folder of its own for a test; gone at the end.
class TestFolder {
 public:
  explicit TestFolder(const std::string& parent = "/tmp");
  ~TestFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace nvshare::scheduler
