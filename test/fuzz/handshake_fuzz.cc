// What connections say before they are clients, and after: packets of any version and length on a few connections of one engine, in virtual
// time. No exception, no promise of the policy broken, and after it all a well-behaved client is registered and gets the lock.
// Input: packets, each a byte that names the connection and what is made right (its length, its version), a byte for its length, bytes.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "fuzz.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/log.h"
#include "scheduler/testing/test_client.h"

namespace {

using namespace nvshare;
using namespace nvshare::scheduler;
using fuzz::require;

constexpr ConnectionId kConnections = 4;
constexpr ConnectionId kHonest = 100;
constexpr uint8_t kHonestGpu = 200;
constexpr policy::Duration kStep = 1'000'000;

class Wire : public Transport {
 public:
  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors) override {
    const auto type = protocol::decode_type(packet.span());
    require(static_cast<bool>(type), "what the scheduler sends can be read");
    if (connection == kHonest) got_lock_ = got_lock_ || *type == protocol::MessageType::kLockOk;
    if (*type == protocol::MessageType::kRegistered) registered_[connection] = true;
  }
  void close(ConnectionId connection) override {
    registered_.erase(connection);
    open_.erase(connection);
  }

  std::map<ConnectionId, bool> registered_;
  std::map<ConnectionId, bool> open_;
  bool got_lock_ = false;
};

void connect(Engine& engine, Wire& wire, ConnectionId connection) {
  Peer peer;
  peer.pid = getpid();
  peer.uid = 1000;
  peer.start_time = connection == kHonest ? 1 : 2;
  peer.account = connection == kHonest ? "honest" : "hostile";
  if (connection == kHonest) peer.pid = getppid();
  wire.open_[connection] = true;
  engine.connected(connection, std::move(peer));
}

// The packet that the bytes stand for.
std::vector<std::byte> packet_of(uint8_t flags, std::string_view bytes) {
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  std::vector<std::byte> packet(first, first + bytes.size());
  protocol::Header header{};
  if (packet.size() < sizeof header) return packet;
  std::memcpy(&header, packet.data(), sizeof header);
  if ((flags & 4) == 0) header.length = static_cast<uint32_t>(packet.size());
  if ((flags & 8) == 0) header.version = (flags & 16) != 0 ? protocol::kVersionMax : protocol::kVersionMin;
  std::memcpy(packet.data(), &header, sizeof header);
  return packet;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_log_level("off");
  static const TestFolder folder("/dev/shm");
  std::string_view text = fuzz::text_of(data, size);
  policy::Instant now = kStep;
  Wire wire;
  Engine::Options options;
  options.settings.lock_dir = folder.path();
  options.settings.runtime_dir = folder.path();
  options.known_clients_file = folder.path() + "/clients";
  std::filesystem::remove(options.known_clients_file);
  options.epoch = 7;
  options.look_at_host = [] { return HostBudget::Machine{int64_t{64} << 30, std::nullopt}; };
  options.look_at_cgroups = [](pid_t pid) { return "0::/system.slice/unit" + std::to_string(pid) + ".service\n"; };
  options.new_segment_id = [id = SegmentId{0}]() mutable { return ++id; };
  Engine engine(std::move(options), wire, now);
  while (!text.empty()) {
    const uint8_t flags = fuzz::take_byte(&text);
    const size_t wanted = fuzz::take_byte(&text) * size_t{2};
    const size_t length = std::min(wanted, text.size());
    const ConnectionId connection = 1 + flags % kConnections;
    if (!wire.open_.contains(connection)) connect(engine, wire, connection);
    const std::vector<std::byte> packet = packet_of(flags, text.substr(0, length));
    text.remove_prefix(length);
    now += kStep;
    engine.received(connection, packet, now);
    if ((flags & 32) != 0 && wire.open_.contains(connection)) {
      wire.close(connection);
      engine.disconnected(connection, "it left", now);
    }
    if (const auto due = engine.next_deadline(); due && *due <= now) engine.deadline_reached(now);
    require(!engine.parts().steps.violated_invariant(), "no invariant of the policy is violated");
  }
  require(engine.parts().clients.all().size() <= wire.registered_.size(), "every client was told that it is registered");
  connect(engine, wire, kHonest);
  auto message = test_registration(1 << 20, kHonestGpu);
  message.wants_lock = 1;
  const protocol::Packet packet = protocol::encode(message, protocol::kVersionMin);
  engine.received(kHonest, packet.span(), now);
  require(wire.registered_.contains(kHonest), "a client that keeps to the protocol is registered");
  require(wire.got_lock_, "and gets the lock of a GPU that it has for itself");
  static_cast<void>(status_of(engine.parts(), now));
  return 0;
}
