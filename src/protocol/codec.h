// Encodes and decodes client messages. Pure, no allocation, thread-safe. Used by both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/result.h"
#include "protocol/messages.h"

namespace nvshare::protocol {

// The MessageType of each payload struct, and the first version that has it; declared once, everything else derives from it. Structs that
// have grown: codec.cc, kFormerSizes.
template <typename Payload>
struct TypeOf;
#define NVSHARE_MESSAGE_OF(payload, first_version, most)          \
  template <>                                                     \
  struct TypeOf<payload> {                                        \
    static constexpr MessageType value = MessageType::k##payload; \
    static constexpr const char* name = #payload;                 \
    static constexpr uint16_t since = first_version;              \
    static constexpr int descriptors_max = most;                  \
  };
#define NVSHARE_MESSAGE_WITH_DESCRIPTORS(payload, most) NVSHARE_MESSAGE_OF(payload, 1, most)
#define NVSHARE_MESSAGE_SINCE(payload, first_version) NVSHARE_MESSAGE_OF(payload, first_version, 0)
#define NVSHARE_MESSAGE(payload) NVSHARE_MESSAGE_OF(payload, 1, 0)
NVSHARE_MESSAGE(Register)
NVSHARE_MESSAGE(ReqLock)
NVSHARE_MESSAGE(LockReleased)
NVSHARE_MESSAGE(MemUpdate)
NVSHARE_MESSAGE(SwapProgress)
NVSHARE_MESSAGE(Registered)
NVSHARE_MESSAGE(Refused)
NVSHARE_MESSAGE_SINCE(About, 2)
NVSHARE_MESSAGE_SINCE(AskOwn, 2)
NVSHARE_MESSAGE_OF(OwnReport, 2, 1)
NVSHARE_MESSAGE(LockOk)
NVSHARE_MESSAGE(DropLock)
NVSHARE_MESSAGE(KeepLock)
NVSHARE_MESSAGE(Drained)
NVSHARE_MESSAGE_SINCE(LockPaused, 2)
NVSHARE_MESSAGE_SINCE(LockResumed, 2)
NVSHARE_MESSAGE_SINCE(KeepsMemory, 2)
NVSHARE_MESSAGE_SINCE(AskProgress, 3)
NVSHARE_MESSAGE_SINCE(Progress, 3)
NVSHARE_MESSAGE_SINCE(EndsSoon, 3)
NVSHARE_MESSAGE_SINCE(Prefetch, 3)
NVSHARE_MESSAGE_SINCE(AskMps, 2)
NVSHARE_MESSAGE_SINCE(MpsGroup, 2)
NVSHARE_MESSAGE(WaitForMem)
NVSHARE_MESSAGE(MemAvailable)
NVSHARE_MESSAGE(Evict)
NVSHARE_MESSAGE(UpdateLimit)
NVSHARE_MESSAGE(Contention)
NVSHARE_MESSAGE(TenantUse)
NVSHARE_MESSAGE(AskWhyWaiting)
NVSHARE_MESSAGE(WhyWaiting)
NVSHARE_MESSAGE(Import)
NVSHARE_MESSAGE(ExportWanted)
NVSHARE_MESSAGE_WITH_DESCRIPTORS(Exported, kChunksPerMessage)
NVSHARE_MESSAGE_WITH_DESCRIPTORS(Imported, kChunksPerMessage)
NVSHARE_MESSAGE(ImportClosed)
NVSHARE_MESSAGE(ExportEnded)
NVSHARE_MESSAGE(ImportInherited)
NVSHARE_MESSAGE(ArenaRequest)
NVSHARE_MESSAGE(ArenaReturned)
NVSHARE_MESSAGE(ArenaShrunk)
NVSHARE_MESSAGE(ArenaHeld)
NVSHARE_MESSAGE(PrepareSwap)
NVSHARE_MESSAGE_WITH_DESCRIPTORS(ArenaSegment, 1)
NVSHARE_MESSAGE(ArenaRefused)
NVSHARE_MESSAGE(ArenaShrink)
NVSHARE_MESSAGE(AskHeadroom)
NVSHARE_MESSAGE(Headroom)
NVSHARE_MESSAGE(RecallHeadroom)
NVSHARE_MESSAGE(HeadroomReturned)
NVSHARE_MESSAGE(HeadroomTaken)
#undef NVSHARE_MESSAGE
#undef NVSHARE_MESSAGE_SINCE
#undef NVSHARE_MESSAGE_WITH_DESCRIPTORS
#undef NVSHARE_MESSAGE_OF

// The newest version that this program speaks: kVersionMax. One version less in the programs that stand for the previous release in tests
// (previous_version.cc is linked instead of version.cc; all else is the same code).
uint16_t version_spoken();

// The version that both sides speak, the newest of several; 0: none. The client speaks client_min .. client_max.
uint16_t common_version(uint16_t client_min, uint16_t client_max);

// A message ready for send(): bytes[0 .. length).
struct Packet {
  uint32_t length = 0;
  alignas(8) std::byte bytes[kMessageBytesMax];
  std::span<const std::byte> span() const { return {bytes, length}; }
};

// As that version has it: cut short where the struct has grown since; empty (length 0, not to be sent) where the version has no such
// message.
Packet encode(MessageType type, uint16_t version, const void* payload, size_t payload_bytes);

template <typename Payload>
Packet encode(const Payload& payload, uint16_t version = version_spoken()) {
  static_assert(std::is_trivially_copyable_v<Payload>);
  return encode(TypeOf<Payload>::value, version, &payload, sizeof payload);
}

// Bounds that every amount of memory and every duration in a message is checked against: sums of thousands of them still fit 63 bits.
// Budgets, limits, ceilings and `wanted` are free: there a huge value means "no bound", and the receiver cuts it.
inline constexpr uint64_t kMemoryBytesMax = 1ULL << 50;
inline constexpr uint64_t kDurationNsMax = 1ULL << 60;
inline constexpr uint32_t kChunksMax = 1u << 20;  // of one export

// Checks length, version, type and the payload's size. Register and Refused are accepted with any version (and, if that is not spoken
// here, any size), all others with kVersionMin .. version_spoken(), if that version has them.
Result<MessageType> decode_type(std::span<const std::byte> packet);

// After Registered both sides keep to its version; only Refused may have another.
Result<void> check_version(std::span<const std::byte> packet, uint16_t agreed);

// Whether a message of that type may come with so many descriptors (base/descriptors.h).
Result<void> check_descriptors(MessageType type, int count);

// Checks also the fields' ranges (enumerations, flags, terminated strings, resident <= allocated); an error says which field was wrong
// and what is accepted, and leaves `payload` as it was. What the packet's version does not have is 0. Of a Register in a version that is
// not spoken here, and of another size than ours, only version_min and version_max are filled in, of such a Refused only its reason.
Result<void> decode_payload(std::span<const std::byte> packet, MessageType type, void* payload, size_t payload_bytes);

template <typename Payload>
Result<Payload> decode(std::span<const std::byte> packet) {
  Payload payload{};
  if (auto ok = decode_payload(packet, TypeOf<Payload>::value, &payload, sizeof payload); !ok) return ok.error();
  return payload;
}

const char* name_of(MessageType type);

}  // namespace nvshare::protocol
