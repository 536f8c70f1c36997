#include "protocol/codec.h"

#include <array>
#include <bit>
#include <cstring>

#include "protocol/directions.h"
#include "protocol/trust_group.h"

namespace nvshare::protocol {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are copied as they lie in memory, which is little-endian");

constexpr size_t kHeaderBytes = sizeof(Header);

Result<void> check_flag(const char* field, uint8_t value) {
  if (value <= 1) return {};
  return error_format("%s is %u; accepted: 0 or 1", field, value);
}

template <typename Enumeration>
Result<void> check_enumeration(const char* field, uint8_t value, Enumeration last) {
  if (value <= static_cast<uint8_t>(last)) return {};
  return error_format("%s is %u; accepted: 0 to %u", field, value, static_cast<unsigned>(last));
}

Result<void> check_at_most(const char* field, uint64_t value, uint64_t maximum) {
  if (value <= maximum) return {};
  return error_format("%s is %llu; accepted: 0 to %llu", field, static_cast<unsigned long long>(value),
                      static_cast<unsigned long long>(maximum));
}

template <size_t kSize>
Result<void> check_terminated(const char* field, const char (&text)[kSize]) {
  if (std::memchr(text, 0, kSize) != nullptr) return {};
  return error_format("%s has no NUL within its %zu bytes", field, kSize);
}

// The first error, or none.
template <typename... Checks>
Result<void> all_of(Checks... checks) {
  Result<void> outcome;
  static_cast<void>(((outcome = checks(), static_cast<bool>(outcome)) && ...));
  return outcome;
}

Result<void> check_memory(const MemoryReport& memory) {
  return all_of([&] { return check_at_most("memory.allocated", memory.allocated, kMemoryBytesMax); },
                [&] { return check_at_most("memory.resident", memory.resident, memory.allocated); },
                [&] { return check_at_most("memory.unswappable", memory.unswappable, memory.allocated); },
                [&] { return check_at_most("memory.swappable_host", memory.swappable_host, kMemoryBytesMax); },
                [&] { return check_at_most("memory.charged", memory.charged, kMemoryBytesMax); });
}

// Messages whose every bit pattern is a valid one.
template <typename Payload>
Result<void> check(const Payload&) {
  return {};
}

template <>
Result<void> check(const Register& message) {
  if (message.version_min == 0 || message.version_max < message.version_min) {
    return error_format("version_min is %u and version_max %u; accepted: 1 <= version_min <= version_max", message.version_min,
                        message.version_max);
  }
  if (message.gpu_total_bytes == 0) return error_format("gpu_total_bytes is 0; accepted: 1 or more");
  return all_of([&] { return check_enumeration("backend", message.backend, Backend::kNone); },
                [&] { return check_flag("has_lock", message.has_lock); }, [&] { return check_flag("wants_lock", message.wants_lock); },
                [&] { return check_flag("asks_only", message.asks_only); },
                [&] { return check_at_most("gpu_total_bytes", message.gpu_total_bytes, kMemoryBytesMax); },
                [&] { return check_at_most("lease", message.lease, kLeaseMax); }, [&] { return check_memory(message.memory); },
                [&] { return check_terminated("gpu_name", message.gpu_name); },
                [&] { return check_terminated("program", message.program); });
}

template <>
Result<void> check(const Registered& message) {
  if (message.version < kVersionMin || message.version > version_spoken())
    return error_format("version is %u; accepted: %u to %u", message.version, kVersionMin, version_spoken());
  return all_of([&] { return check_at_most("lease", message.lease, kLeaseMax); },
                [&] { return check_terminated("release", message.release); },
                [&] { return check_terminated("tenant_name", message.tenant_name); },
                [&] { return check_flag("skip_unchanged", message.skip_unchanged); });
}

template <>
Result<void> check(const About& message) {
  return check_terminated("release", message.release);
}

template <>
Result<void> check(const AskOwn& message) {
  return check_enumeration("wish", message.wish, OwnWish::kRelease);
}

template <>
Result<void> check(const OwnReport& message) {
  return check_at_most("bytes", message.bytes, kMemoryBytesMax);
}

template <>
Result<void> check(const KeepsMemory& message) {
  return check_terminated("why", message.why);
}

template <>
Result<void> check(const AskMps& message) {
  if (auto ok = check_terminated("group", message.group); !ok) return ok;
  if (message.group[0] == 0 || is_trust_group(message.group)) return {};
  return error_format("group is no name of a trust group; accepted: %s", kTrustGroupForm);
}

template <>
Result<void> check(const MpsGroup& message) {
  return all_of([&] { return check_enumeration("state", message.state, MpsState::kCannot); },
                [&] { return check_terminated("directory", message.directory); },
                [&] { return check_terminated("reason", message.reason); });
}

template <>
Result<void> check(const Refused& message) {
  return all_of([&] { return check_terminated("reason", message.reason); }, [&] { return check_flag("barred", message.barred); });
}

template <>
Result<void> check(const LockReleased& message) {
  return all_of([&] { return check_enumeration("reason", message.reason, ReleaseReason::kNotDrained); },
                [&] { return check_at_most("used_ns", message.used_ns, kDurationNsMax); }, [&] { return check_memory(message.memory); });
}

template <>
Result<void> check(const LockPaused& message) {
  return check_at_most("used_ns", message.used_ns, kDurationNsMax);
}

template <>
Result<void> check(const DropLock& message) {
  return all_of([&] { return check_flag("together", message.together); }, [&] { return check_flag("tells_end", message.tells_end); });
}

template <>
Result<void> check(const MemUpdate& message) {
  return check_memory(message.memory);
}

template <>
Result<void> check(const MemAvailable& message) {
  return check_flag("granted", message.granted);
}

template <>
Result<void> check(const SwapProgress& message) {
  return all_of([&] { return check_enumeration("direction", message.direction, SwapDirection::kAhead); },
                [&] { return check_flag("finished", message.finished); }, [&] { return check_flag("failed", message.failed); },
                [&] { return check_at_most("moved", message.moved, kMemoryBytesMax); },
                [&] { return check_at_most("copied", message.copied, message.moved); },
                [&] { return check_at_most("unchanged", message.unchanged, kMemoryBytesMax); },
                [&] { return check_flag("mistaken", message.mistaken); },
                [&] { return check_at_most("elapsed_ns", message.elapsed_ns, kDurationNsMax); },
                [&] { return check_memory(message.memory); });
}

template <>
Result<void> check(const Contention& message) {
  return all_of([&] { return check_at_most("limited", message.limited, kLimitedAll); },
                [&] { return check_at_most("idle_release_us", message.idle_release_us, kIdleReleaseUsMax); },
                [&] { return check_flag("gang_runs", message.gang_runs); },
                [&] { return check_at_most("pause_us", message.pause_us, kIdleReleaseUsMax); },
                [&] { return check_flag("held", message.held); });
}

template <>
Result<void> check(const TenantUse& message) {
  return all_of([&] { return check_at_most("allocated", message.allocated, kMemoryBytesMax); },
                [&] { return check_at_most("processes", message.processes, kTenantProcessesMax); },
                [&] { return check_at_most("first", message.first, message.processes); });
}

template <>
Result<void> check(const WhyWaiting& message) {
  return check_terminated("text", message.text);
}

// The same of Exported and Imported.
template <typename Payload>
Result<void> check_chunks(const Payload& message) {
  auto sums = [&]() -> Result<void> {
    if (static_cast<ExportStatus>(message.status) != ExportStatus::kOk) return {};
    const uint64_t chunks = message.chunk_bytes == 0 ? 0 : (message.bytes + message.chunk_bytes - 1) / message.chunk_bytes;
    if (message.bytes > 0 && chunks == message.chunks && message.first < message.chunks) return {};
    return error_format("bytes is %llu, chunk_bytes %llu, chunks %u, first %u: they do not go together",
                        static_cast<unsigned long long>(message.bytes), static_cast<unsigned long long>(message.chunk_bytes),
                        message.chunks, message.first);
  };
  return all_of([&] { return check_enumeration("status", message.status, ExportStatus::kFailed); },
                [&] { return check_at_most("bytes", message.bytes, kMemoryBytesMax); },
                [&] { return check_at_most("chunk_bytes", message.chunk_bytes, kMemoryBytesMax); },
                [&] { return check_at_most("chunks", message.chunks, kChunksMax); }, sums);
}

template <>
Result<void> check(const Exported& message) {
  return check_chunks(message);
}

template <>
Result<void> check(const Imported& message) {
  return check_chunks(message);
}

Result<void> check_segment_bytes(uint64_t bytes) {
  if (bytes > 0 && bytes <= kArenaSegmentBytesMax && bytes % kArenaUnitBytes == 0) return {};
  return error_format("bytes is %llu; accepted: multiples of %llu up to %llu", static_cast<unsigned long long>(bytes),
                      static_cast<unsigned long long>(kArenaUnitBytes), static_cast<unsigned long long>(kArenaSegmentBytesMax));
}

template <>
Result<void> check(const AskProgress& message) {
  return check_flag("counts", message.counts);
}

template <>
Result<void> check(const ArenaRequest& message) {
  if (message.total % kArenaUnitBytes != 0) {
    return error_format("total is %llu; accepted: multiples of %llu", static_cast<unsigned long long>(message.total),
                        static_cast<unsigned long long>(kArenaUnitBytes));
  }
  return all_of([&] { return check_at_most("total", message.total, kArenaBytesMax); },
                [&] { return check_enumeration("owner", message.owner, ArenaOwner::kScheduler); },
                [&] { return check_flag("urgent", message.urgent); });
}

template <>
Result<void> check(const ArenaSegment& message) {
  return all_of([&] { return check_segment_bytes(message.bytes); },
                [&] { return check_enumeration("owner", message.owner, ArenaOwner::kScheduler); });
}

template <>
Result<void> check(const ArenaHeld& message) {
  return all_of([&] { return check_segment_bytes(message.bytes); },
                [&] { return check_enumeration("owner", message.owner, ArenaOwner::kScheduler); });
}

template <>
Result<void> check(const ArenaShrunk& message) {
  return check_at_most("bytes", message.bytes, kArenaBytesMax);
}

template <>
Result<void> check(const AskHeadroom& message) {
  if (message.bytes == 0) return error_format("bytes is 0; accepted: 1 to %llu", static_cast<unsigned long long>(kLeaseMax));
  return all_of([&] { return check_at_most("bytes", message.bytes, kLeaseMax); },
                [&] { return check_at_most("returned", message.returned, kLeaseMax); });
}

template <>
Result<void> check(const Headroom& message) {
  return all_of([&] { return check_flag("granted", message.granted); }, [&] { return check_at_most("bytes", message.bytes, kLeaseMax); });
}

template <>
Result<void> check(const HeadroomTaken& message) {
  return check_at_most("bytes", message.bytes, kMemoryBytesMax);
}

template <>
Result<void> check(const RecallHeadroom& message) {
  return check_at_most("bytes", message.bytes, kLeaseMax);
}

template <>
Result<void> check(const HeadroomReturned& message) {
  return all_of([&] { return check_at_most("bytes", message.bytes, kLeaseMax); },
                [&] { return check_at_most("charged", message.charged, kMemoryBytesMax); });
}

struct Format {
  MessageType type;
  const char* name;
  uint16_t since;
  size_t payload_bytes;
  int descriptors_max;
  Result<void> (*check)(const void* payload);
};

template <typename Payload>
constexpr Format format_of() {
  return {TypeOf<Payload>::value,
          TypeOf<Payload>::name,
          TypeOf<Payload>::since,
          sizeof(Payload),
          TypeOf<Payload>::descriptors_max,
          [](const void* bytes) {
            Payload payload;
            std::memcpy(&payload, bytes, sizeof payload);
            return check(payload);
          }};
}

template <typename... Payloads>
constexpr std::array<Format, sizeof...(Payloads)> formats_of(Messages<Payloads...>) {
  return {format_of<Payloads>()...};
}

constexpr auto kFormats = formats_of(AllMessages{});

constexpr bool each_type_is_there_once() {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (kFormats[i].type == kFormats[j].type) return false;
    }
  }
  return true;
}
static_assert(each_type_is_there_once());

// Structs that have grown: in versions up to `until` they ended after so many bytes. Oldest first.
struct FormerSize {
  MessageType type;
  uint16_t until;
  size_t bytes;
};

constexpr FormerSize kFormerSizes[] = {
    {MessageType::kRegistered, 1, offsetof(Registered, release)},         {MessageType::kDropLock, 2, offsetof(DropLock, tells_end)},
    {MessageType::kContention, 1, offsetof(Contention, gang_runs)},       {MessageType::kContention, 2, offsetof(Contention, held)},
    {MessageType::kLockReleased, 2, offsetof(LockReleased, submissions)}, {MessageType::kLockPaused, 2, offsetof(LockPaused, submissions)},
    {MessageType::kSwapProgress, 1, offsetof(SwapProgress, unchanged)},   {MessageType::kAskMps, 2, offsetof(AskMps, group)},
};

size_t payload_bytes_in(const Format& format, uint16_t version) {
  for (const FormerSize& former : kFormerSizes) {
    if (former.type == format.type && version <= former.until) return former.bytes;
  }
  return format.payload_bytes;
}

const Format* find_format(MessageType type) {
  for (const Format& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

// What two sides without a common version must still understand of each other.
bool any_version(MessageType type) { return type == MessageType::kRegister || type == MessageType::kRefused; }

bool is_spoken(uint16_t version) { return version >= kVersionMin && version <= version_spoken(); }

Header header_of(std::span<const std::byte> packet) {
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  return header;
}

// Of a Register or Refused in a version that is not ours: all of it, as it is the same in all versions; if it is not, the two version
// numbers, or the text, as far as they are there.
Result<void> decode_foreign(std::span<const std::byte> packet, const Format& format, void* payload) {
  size_t present = packet.size() - kHeaderBytes;
  if (present == format.payload_bytes && format.check(packet.data() + kHeaderBytes)) {
    std::memcpy(payload, packet.data() + kHeaderBytes, present);
    return {};
  }
  if (format.type == MessageType::kRegister) {
    constexpr size_t kVersions = offsetof(Register, version_max) + sizeof(Register::version_max);
    if (present < kVersions) return error_format("Register of %zu bytes holds no versions", packet.size());
    present = kVersions;
  }
  if (present > format.payload_bytes) present = format.payload_bytes;
  std::memset(payload, 0, format.payload_bytes);
  std::memcpy(payload, packet.data() + kHeaderBytes, present);
  if (format.type == MessageType::kRegister) return {};
  return format.check(payload);
}

}  // namespace

Packet encode(MessageType type, uint16_t version, const void* payload, size_t payload_bytes) {
  Packet packet;
  if (payload_bytes > sizeof packet.bytes - kHeaderBytes) return packet;
  if (const Format* format = find_format(type); format != nullptr && payload_bytes == format->payload_bytes) {
    if (version < format->since && version >= kVersionMin) return packet;
    payload_bytes = payload_bytes_in(*format, version);
  }
  Header header{static_cast<uint16_t>(type), version, static_cast<uint32_t>(kHeaderBytes + payload_bytes)};
  std::memcpy(packet.bytes, &header, sizeof header);
  std::memcpy(packet.bytes + kHeaderBytes, payload, payload_bytes);
  packet.length = header.length;
  return packet;
}

Result<MessageType> decode_type(std::span<const std::byte> packet) {
  if (packet.size() < kHeaderBytes || packet.size() > kMessageBytesMax) {
    return error_format("packet of %zu bytes; accepted: %zu to %u", packet.size(), kHeaderBytes, kMessageBytesMax);
  }
  Header header = header_of(packet);
  if (header.length != packet.size()) return error_format("header says %u bytes, packet has %zu", header.length, packet.size());
  const Format* format = find_format(static_cast<MessageType>(header.type));
  if (format == nullptr) return error_format("message type %u is unknown", header.type);
  if (!is_spoken(header.version)) {
    if (any_version(format->type)) return format->type;
    return error_format("%s has version %u; accepted: %u to %u", format->name, header.version, kVersionMin, version_spoken());
  }
  if (header.version < format->since) return error_format("version %u has no %s", header.version, format->name);
  const size_t payload_bytes = payload_bytes_in(*format, header.version);
  if (packet.size() != kHeaderBytes + payload_bytes) {
    return error_format("%s has %zu bytes; accepted: %zu", format->name, packet.size(), kHeaderBytes + payload_bytes);
  }
  return format->type;
}

Result<void> check_version(std::span<const std::byte> packet, uint16_t agreed) {
  const Header header = header_of(packet);
  if (header.version == agreed || static_cast<MessageType>(header.type) == MessageType::kRefused) return {};
  return error_format("%s has version %u; this connection speaks %u", name_of(static_cast<MessageType>(header.type)), header.version,
                      agreed);
}

uint16_t common_version(uint16_t client_min, uint16_t client_max) {
  const uint16_t version = client_max < version_spoken() ? client_max : version_spoken();
  return version >= client_min && version >= kVersionMin ? version : 0;
}

Result<void> check_descriptors(MessageType type, int count) {
  const Format* format = find_format(type);
  const int most = format != nullptr ? format->descriptors_max : 0;
  if (count >= 0 && count <= most) return {};
  return error_format("%s comes with %d descriptors; accepted: 0 to %d", name_of(type), count, most);
}

Result<void> decode_payload(std::span<const std::byte> packet, MessageType type, void* payload, size_t payload_bytes) {
  Result<MessageType> actual = decode_type(packet);
  if (!actual) return actual.error();
  const Format* format = find_format(type);
  if (format == nullptr || *actual != type || payload_bytes != format->payload_bytes) {
    return error_format("packet holds %s, not %s", name_of(*actual), name_of(type));
  }
  if (!is_spoken(header_of(packet).version)) return decode_foreign(packet, *format, payload);
  std::byte bytes[kMessageBytesMax] = {};
  std::memcpy(bytes, packet.data() + kHeaderBytes, packet.size() - kHeaderBytes);
  if (Result<void> valid = format->check(bytes); !valid) return error_format("%s: %.200s", format->name, valid.error().text);
  std::memcpy(payload, bytes, payload_bytes);
  return {};
}

const char* name_of(MessageType type) {
  const Format* format = find_format(type);
  return format == nullptr ? "unknown" : format->name;
}

}  // namespace nvshare::protocol
