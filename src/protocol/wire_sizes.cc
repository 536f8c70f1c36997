// The size of every message: none has padding, and each fits into a packet.
#include "protocol/messages.h"

namespace nvshare::protocol {

#define NVSHARE_WIRE_SIZE(type, size) static_assert(sizeof(type) == (size) && sizeof(type) + sizeof(Header) <= kMessageBytesMax)
NVSHARE_WIRE_SIZE(Header, 8);
NVSHARE_WIRE_SIZE(MemoryReport, 40);
NVSHARE_WIRE_SIZE(Register, 8 + 16 + 24 + 16 + 8 + 40 + 128);
NVSHARE_WIRE_SIZE(Registered, 72 + 32 + 72 + 8);
NVSHARE_WIRE_SIZE(About, 32);
NVSHARE_WIRE_SIZE(AskOwn, 16);
NVSHARE_WIRE_SIZE(OwnReport, 8);
NVSHARE_WIRE_SIZE(KeepsMemory, 128);
NVSHARE_WIRE_SIZE(Refused, 264);
NVSHARE_WIRE_SIZE(ReqLock, 8);
NVSHARE_WIRE_SIZE(Grant, 16);
NVSHARE_WIRE_SIZE(LockOk, 32);
NVSHARE_WIRE_SIZE(DropLock, 40);
NVSHARE_WIRE_SIZE(KeepLock, 16);
NVSHARE_WIRE_SIZE(Drained, 24);
NVSHARE_WIRE_SIZE(EndsSoon, 24);
NVSHARE_WIRE_SIZE(LockPaused, 32);
NVSHARE_WIRE_SIZE(LockResumed, 16);
NVSHARE_WIRE_SIZE(LockReleased, 88);
NVSHARE_WIRE_SIZE(MemUpdate, 80);
NVSHARE_WIRE_SIZE(WaitForMem, 8);
NVSHARE_WIRE_SIZE(MemAvailable, 32);
NVSHARE_WIRE_SIZE(Evict, 16);
NVSHARE_WIRE_SIZE(AskProgress, 16);
NVSHARE_WIRE_SIZE(Progress, 16);
NVSHARE_WIRE_SIZE(Prefetch, 16);
NVSHARE_WIRE_SIZE(SwapProgress, 80 + 8);
NVSHARE_WIRE_SIZE(AskWhyWaiting, 8);
NVSHARE_WIRE_SIZE(WhyWaiting, 264);
NVSHARE_WIRE_SIZE(UpdateLimit, 32);
NVSHARE_WIRE_SIZE(AskHeadroom, 24);
NVSHARE_WIRE_SIZE(Headroom, 40);
NVSHARE_WIRE_SIZE(RecallHeadroom, 16);
NVSHARE_WIRE_SIZE(HeadroomReturned, 24);
NVSHARE_WIRE_SIZE(HeadroomTaken, 8);
NVSHARE_WIRE_SIZE(TenantProcess, 16);
NVSHARE_WIRE_SIZE(TenantUse, 32 + 24 * 16);
NVSHARE_WIRE_SIZE(Contention, 40);
NVSHARE_WIRE_SIZE(Import, 40);
NVSHARE_WIRE_SIZE(ExportWanted, 32);
NVSHARE_WIRE_SIZE(Exported, 40);
NVSHARE_WIRE_SIZE(Imported, 40);
NVSHARE_WIRE_SIZE(ImportClosed, 8);
NVSHARE_WIRE_SIZE(ExportEnded, 8);
NVSHARE_WIRE_SIZE(ImportInherited, 8);
NVSHARE_WIRE_SIZE(ArenaRequest, 24);
NVSHARE_WIRE_SIZE(ArenaSegment, 24);
NVSHARE_WIRE_SIZE(ArenaRefused, 16);
NVSHARE_WIRE_SIZE(ArenaShrink, 16);
NVSHARE_WIRE_SIZE(ArenaReturned, 8);
NVSHARE_WIRE_SIZE(ArenaShrunk, 16);
NVSHARE_WIRE_SIZE(ArenaHeld, 24);
NVSHARE_WIRE_SIZE(PrepareSwap, 8);
NVSHARE_WIRE_SIZE(AskMps, 8 + 40);
NVSHARE_WIRE_SIZE(MpsGroup, 8 + 128 + 256);
#undef NVSHARE_WIRE_SIZE

}  // namespace nvshare::protocol
