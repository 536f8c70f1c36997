// Any bytes are refused with a reason, or decode to a message that keeps the codec's promises and encodes to the same bytes.
#include <cstdlib>
#include <cstring>
#include <span>

#include "protocol/codec.h"

namespace {

using namespace nvshare::protocol;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Memory& memory) {
  require(memory.allocated <= kMemoryBytesMax && memory.resident <= memory.allocated && memory.unswappable <= memory.allocated);
}

template <typename Payload>
void check(const Payload& payload) {
  if constexpr (requires { payload.memory; }) check(payload.memory);
}

template <typename Payload>
void try_decode(std::span<const std::byte> packet) {
  auto payload = decode<Payload>(packet);
  if (!payload) {
    require(payload.error().text[0] != 0);
    return;
  }
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.version < kVersionMin || header.version > kVersionMax) return;  // only in part, and only Register and Refused
  check(*payload);
  Packet again = encode(*payload, header.version);
  require(again.length == packet.size() && std::memcmp(again.bytes, packet.data(), packet.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> packet = std::as_bytes(std::span(data, size));
  auto type = decode_type(packet);
  if (!type) {
    require(type.error().text[0] != 0);
    return 0;
  }
  switch (*type) {
    case MessageType::kRegister:
      try_decode<Register>(packet);
      break;
    case MessageType::kAbout:
      try_decode<About>(packet);
      break;
    case MessageType::kReqLock:
      try_decode<ReqLock>(packet);
      break;
    case MessageType::kLockReleased:
      try_decode<LockReleased>(packet);
      break;
    case MessageType::kMemUpdate:
      try_decode<MemUpdate>(packet);
      break;
    case MessageType::kSwapProgress:
      try_decode<SwapProgress>(packet);
      break;
    case MessageType::kIdle:
      try_decode<Idle>(packet);
      break;
    case MessageType::kRegistered:
      try_decode<Registered>(packet);
      break;
    case MessageType::kRefused:
      try_decode<Refused>(packet);
      break;
    case MessageType::kLockOk:
      try_decode<LockOk>(packet);
      break;
    case MessageType::kDropLock:
      try_decode<DropLock>(packet);
      break;
    case MessageType::kKeepLock:
      try_decode<KeepLock>(packet);
      break;
    case MessageType::kLockPaused:
      try_decode<LockPaused>(packet);
      break;
    case MessageType::kLockResumed:
      try_decode<LockResumed>(packet);
      break;
    case MessageType::kAskMps:
      try_decode<AskMps>(packet);
      break;
    case MessageType::kMpsGroup:
      try_decode<MpsGroup>(packet);
      break;
    case MessageType::kAskProgress:
      try_decode<AskProgress>(packet);
      break;
    case MessageType::kPrefetch:
      try_decode<Prefetch>(packet);
      break;
    case MessageType::kProgress:
      try_decode<Progress>(packet);
      break;
    case MessageType::kKeepsMemory:
      try_decode<KeepsMemory>(packet);
      break;
    case MessageType::kDrained:
      try_decode<Drained>(packet);
      break;
    case MessageType::kWaitForMem:
      try_decode<WaitForMem>(packet);
      break;
    case MessageType::kMemAvailable:
      try_decode<MemAvailable>(packet);
      break;
    case MessageType::kEvict:
      try_decode<Evict>(packet);
      break;
    case MessageType::kUpdateLimit:
      try_decode<UpdateLimit>(packet);
      break;
    case MessageType::kContention:
      try_decode<Contention>(packet);
      break;
    case MessageType::kTenantUse:
      try_decode<TenantUse>(packet);
      break;
    case MessageType::kAskOwn:
      try_decode<AskOwn>(packet);
      break;
    case MessageType::kOwnReport:
      try_decode<OwnReport>(packet);
      break;
    case MessageType::kAskWhyWaiting:
      try_decode<AskWhyWaiting>(packet);
      break;
    case MessageType::kWhyWaiting:
      try_decode<WhyWaiting>(packet);
      break;
    case MessageType::kImport:
      try_decode<Import>(packet);
      break;
    case MessageType::kExportWanted:
      try_decode<ExportWanted>(packet);
      break;
    case MessageType::kExported:
      try_decode<Exported>(packet);
      break;
    case MessageType::kImported:
      try_decode<Imported>(packet);
      break;
    case MessageType::kImportClosed:
      try_decode<ImportClosed>(packet);
      break;
    case MessageType::kExportEnded:
      try_decode<ExportEnded>(packet);
      break;
    case MessageType::kImportInherited:
      try_decode<ImportInherited>(packet);
      break;
    case MessageType::kArenaRequest:
      try_decode<ArenaRequest>(packet);
      break;
    case MessageType::kArenaReturned:
      try_decode<ArenaReturned>(packet);
      break;
    case MessageType::kArenaShrunk:
      try_decode<ArenaShrunk>(packet);
      break;
    case MessageType::kArenaHeld:
      try_decode<ArenaHeld>(packet);
      break;
    case MessageType::kPrepareSwap:
      try_decode<PrepareSwap>(packet);
      break;
    case MessageType::kArenaSegment:
      try_decode<ArenaSegment>(packet);
      break;
    case MessageType::kArenaRefused:
      try_decode<ArenaRefused>(packet);
      break;
    case MessageType::kArenaShrink:
      try_decode<ArenaShrink>(packet);
      break;
    case MessageType::kAskHeadroom:
      try_decode<AskHeadroom>(packet);
      break;
    case MessageType::kHeadroom:
      try_decode<Headroom>(packet);
      break;
    case MessageType::kRecallHeadroom:
      try_decode<RecallHeadroom>(packet);
      break;
    case MessageType::kHeadroomReturned:
      try_decode<HeadroomReturned>(packet);
      break;
    case MessageType::kHeadroomTaken:
      try_decode<HeadroomTaken>(packet);
      break;
  }
  return 0;
}
