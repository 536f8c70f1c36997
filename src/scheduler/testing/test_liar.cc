#include "scheduler/testing/test_liar.h"

#include <algorithm>
#include <cstring>

#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

using protocol::MessageType;
using protocol::Packet;

struct Kind {
  MessageType type;
  size_t bytes;
};
template <typename... Payloads>
std::vector<Kind> kinds_of() {
  return {Kind{protocol::TypeOf<Payloads>::value, sizeof(Payloads)}...};
}
const std::vector<Kind>& kinds() {
  using namespace protocol;
  static const std::vector<Kind> all =
      kinds_of<ReqLock, LockReleased, LockPaused, LockResumed, Drained, EndsSoon, Progress, MemUpdate, SwapProgress, AskWhyWaiting, About,
               KeepsMemory, Import, Exported, ImportClosed, ExportEnded, ArenaRequest, ArenaReturned, ArenaShrunk, ArenaHeld, AskHeadroom,
               HeadroomReturned, HeadroomTaken>();
  return all;
}

}  // namespace

void TestLiar::hear(const Packet& packet) {
  for (size_t at = sizeof(protocol::Header); at + 8 <= packet.length && at < sizeof(protocol::Header) + 64; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, packet.bytes + at, 8);
    if (word == 0) continue;
    if (heard_.size() < 4096) {
      heard_.push_back(word);
    } else {
      heard_[below(heard_.size())] = word;
    }
  }
}
uint64_t TestLiar::word() {
  static constexpr uint64_t kHurting[] = {1,          2,          255,        1 << 20,    2 << 20,          1ULL << 31, 1ULL << 32,
                                          1ULL << 34, 1ULL << 40, 1ULL << 49, 1ULL << 50, (1ULL << 63) - 1, 1ULL << 63, ~0ULL};
  switch (below(8)) {
    case 0:
    case 1:
    case 2:
      return 0;
    case 3:
      return kHurting[below(std::size(kHurting))];
    case 4:
      return below(16);
    case 5:
      return random_();
    default:
      return heard_.empty() ? 0 : heard_[below(heard_.size())] + (one_in(8) ? below(3) : 0);
  }
}

Packet TestLiar::registration(uint8_t gpu, uint64_t former_id) {
  if (one_in(24)) {
    protocol::AskMps asks{word(), {}};
    for (size_t i = 0, length = below(sizeof asks.group); i < length; ++i)
      asks.group[i] = static_cast<char>(one_in(20) ? word() : 'a' + below(26));
    return protocol::encode(asks);
  }
  if (one_in(12)) return protocol::encode(protocol::AskOwn{static_cast<uint8_t>(below(3)), {}, below(20)});
  auto message = test_registration(one_in(2) ? below(20) << 30 : word(), gpu);
  if (one_in(2)) {
    message.has_lock = static_cast<uint8_t>(below(2));
    message.wants_lock = static_cast<uint8_t>(below(2));
    message.asks_only = one_in(6);
    message.backend = static_cast<uint8_t>(below(3));
    message.client_id = word();
    message.lease = word();
    message.node_limit = word();
    message.memory_limit = word();
    message.gpu_total_bytes = one_in(3) ? word() : message.gpu_total_bytes;
    message.memory = {word(), word(), word(), word(), word()};
    if (message.memory.resident > message.memory.allocated) std::swap(message.memory.resident, message.memory.allocated);
  }
  if (one_in(2)) message.client_id = former_id;
  return protocol::encode(message, protocol::kVersionMin);
}

Packet TestLiar::message() {
  Packet packet{};
  const Kind kind = kinds()[below(kinds().size())];
  packet.length = static_cast<uint32_t>(sizeof(protocol::Header) + kind.bytes);
  const protocol::Header header{static_cast<uint16_t>(kind.type), protocol::kVersionMax, packet.length};
  std::memcpy(packet.bytes, &header, sizeof header);
  for (size_t at = sizeof header; at + 8 <= packet.length; at += 8) {
    const uint64_t value = word();
    std::memcpy(packet.bytes + at, &value, 8);
  }
  make_likely(kind.type, packet);
  if (one_in(300)) packet.bytes[below(packet.length)] = static_cast<std::byte>(below(256));
  return packet;
}

// Flags and enumerations within their ranges, resident within allocated: most messages are to get past the codec.
void TestLiar::make_likely(MessageType type, Packet& packet) {
  if (one_in(10)) return;
  const auto change = [&]<typename Payload>(Payload*, auto make) {
    Payload payload;
    std::memcpy(&payload, packet.bytes + sizeof(protocol::Header), sizeof payload);
    make(payload);
    std::memcpy(packet.bytes + sizeof(protocol::Header), &payload, sizeof payload);
  };
  const auto sane = [&](protocol::MemoryReport& memory) {
    for (uint64_t* each : {&memory.allocated, &memory.resident, &memory.unswappable, &memory.swappable_host, &memory.charged}) {
      *each = std::min(*each, uint64_t{1} << 50);
    }
    memory.resident = std::min(memory.resident, memory.allocated);
    memory.unswappable = std::min(memory.unswappable, memory.resident);
  };
  if (type == MessageType::kLockReleased) {
    change(static_cast<protocol::LockReleased*>(nullptr), [&](protocol::LockReleased& m) {
      m.reason = static_cast<uint8_t>(below(4));
      std::memset(m.reserved, 0, sizeof m.reserved);
      sane(m.memory);
    });
  } else if (type == MessageType::kMemUpdate) {
    change(static_cast<protocol::MemUpdate*>(nullptr), [&](protocol::MemUpdate& m) { sane(m.memory); });
  } else if (type == MessageType::kSwapProgress) {
    change(static_cast<protocol::SwapProgress*>(nullptr), [&](protocol::SwapProgress& m) {
      m.direction = static_cast<uint8_t>(below(2));
      m.finished = static_cast<uint8_t>(below(2));
      m.failed = static_cast<uint8_t>(one_in(8));
      std::memset(m.reserved, 0, sizeof m.reserved);
      sane(m.memory);
    });
  } else if (type == MessageType::kArenaRequest) {
    change(static_cast<protocol::ArenaRequest*>(nullptr), [&](protocol::ArenaRequest& m) {
      m.total = below(1 << 14) * protocol::kArenaUnitBytes;
      m.owner = static_cast<uint8_t>(below(2));
      m.urgent = static_cast<uint8_t>(below(2));
      std::memset(m.reserved, 0, sizeof m.reserved);
    });
  } else if (type == MessageType::kArenaHeld) {
    change(static_cast<protocol::ArenaHeld*>(nullptr), [&](protocol::ArenaHeld& m) {
      m.bytes = (1 + below(128)) * protocol::kArenaUnitBytes;
      m.owner = static_cast<uint8_t>(below(2));
      std::memset(m.reserved, 0, sizeof m.reserved);
    });
  } else if (type == MessageType::kExported) {
    change(static_cast<protocol::Exported*>(nullptr), [&](protocol::Exported& m) {
      m.status = static_cast<uint8_t>(below(4));
      m.chunks = static_cast<uint32_t>(1 + below(4));
      m.first = static_cast<uint32_t>(below(4));
      std::memset(m.reserved, 0, sizeof m.reserved);
    });
  }
}

}  // namespace nvshare::scheduler
