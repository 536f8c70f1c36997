#include "protocol/codec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace nvshare::protocol {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Packet& packet) { return {packet.span().begin(), packet.span().end()}; }

Register good_register() {
  Register message{};
  message.version_min = kVersionMin;
  message.version_max = kVersionMax;
  message.gpu_total_bytes = 16ULL << 30;
  message.memory = {3000, 2000, 1000, 500, 2500};
  std::strcpy(message.gpu_name, "stand-in");
  std::strcpy(message.program, "train");
  return message;
}

LockReleased good_released() { return {{7, 8}, static_cast<uint8_t>(ReleaseReason::kEarly), {}, 20000, 1000, 900, {10, 5, 5, 0, 10}, 7}; }

SwapProgress good_progress() { return {static_cast<uint8_t>(SwapDirection::kIn), 1, 0, 0, {}, 4, 64, 32, 99, {100, 64, 0, 0, 90}}; }

// One valid packet of every message type.
std::vector<Bytes> valid_packets() {
  return {
      bytes_of(encode(good_register())),
      bytes_of(encode(ReqLock{1})),
      bytes_of(encode(good_released())),
      bytes_of(encode(MemUpdate{{30, 20, 10, 0, 25}, UINT64_MAX, 3, 0, 5, 6})),
      bytes_of(encode(good_progress())),
      bytes_of(encode(Registered{1, {}, 2, 3, 4, 5, 6, 7, 8, 9, "1.2", 3, "train"})),
      bytes_of(encode(About{"1.2"})),
      bytes_of(encode(Refused{"no", 1, {}})),
      bytes_of(encode(LockOk{{1, 2}, 3, 4})),
      bytes_of(encode(DropLock{{1, 2}, 3, 1, {}, 0, {}})),
      bytes_of(encode(KeepLock{{1, 2}})),
      bytes_of(encode(Drained{{1, 2}, 3})),
      bytes_of(encode(EndsSoon{{1, 2}, 3})),
      bytes_of(encode(LockPaused{{1, 2}, 3, 4})),
      bytes_of(encode(LockResumed{{1, 2}})),
      bytes_of(encode(KeepsMemory{"it called a new function"})),
      bytes_of(encode(AskProgress{1, 1, {}})),
      bytes_of(encode(Progress{1, 2})),
      bytes_of(encode(Prefetch{1, 2})),
      bytes_of(encode(AskOwn{1, {}, 7})),
      bytes_of(encode(OwnReport{4096})),
      bytes_of(encode(WaitForMem{1})),
      bytes_of(encode(MemAvailable{1, 1, {}, 2, 3})),
      bytes_of(encode(Evict{1, 2})),
      bytes_of(encode(UpdateLimit{1, 2, 3, 4})),
      bytes_of(encode(Contention{1, 2, 3, kLimitedCompute, 200, 1, {}, 300})),
      bytes_of(encode(TenantUse{1, 2, 3, 1, 0, {{4, 0, 3}}})),
      bytes_of(encode(AskWhyWaiting{1})),
      bytes_of(encode(WhyWaiting{1, "a neighbour"})),
      bytes_of(encode(Import{1, 2, 3, {4}})),
      bytes_of(encode(ExportWanted{1, 2, {3}})),
      bytes_of(encode(Exported{1, 100, 64, 2, 1, 0, {}})),
      bytes_of(encode(Imported{1, 100, 64, 2, 0, 0, {}})),
      bytes_of(encode(ImportClosed{1})),
      bytes_of(encode(ExportEnded{1})),
      bytes_of(encode(ImportInherited{1})),
      bytes_of(encode(ArenaRequest{1, 4 * kArenaUnitBytes, 1, 0, {}})),
      bytes_of(encode(ArenaReturned{7})),
      bytes_of(encode(ArenaShrunk{1, 4096})),
      bytes_of(encode(ArenaHeld{7, kArenaUnitBytes, 1, {}})),
      bytes_of(encode(PrepareSwap{1 << 30})),
      bytes_of(encode(ArenaSegment{7, kArenaSegmentBytesMax, 0, {}})),
      bytes_of(encode(ArenaRefused{1, 2})),
      bytes_of(encode(ArenaShrink{1, 2})),
      bytes_of(encode(AskMps{0, "team-1"})),
      bytes_of(encode(MpsGroup{1, {}, "/run/nvshare/mps/1000/pipe", ""})),
      bytes_of(encode(AskHeadroom{1, 4096, 2048})),
      bytes_of(encode(Headroom{1, 4096, 8192, 0, 1, {}})),
      bytes_of(encode(RecallHeadroom{1, 4096})),
      bytes_of(encode(HeadroomReturned{1, 4096, 0})),
      bytes_of(encode(HeadroomTaken{4096})),
  };
}

// Decodes whatever it is; returns the type that was accepted.
Result<MessageType> decode_any(std::span<const std::byte> packet) {
  auto type = decode_type(packet);
  if (!type) return type.error();
  auto check = [](auto decoded) -> Result<void> {
    if (!decoded) return decoded.error();
    return {};
  };
  Result<void> outcome = error_format("not reached");
  switch (*type) {
    case MessageType::kRegister:
      outcome = check(decode<Register>(packet));
      break;
    case MessageType::kAbout:
      outcome = check(decode<About>(packet));
      break;
    case MessageType::kReqLock:
      outcome = check(decode<ReqLock>(packet));
      break;
    case MessageType::kLockReleased:
      outcome = check(decode<LockReleased>(packet));
      break;
    case MessageType::kMemUpdate:
      outcome = check(decode<MemUpdate>(packet));
      break;
    case MessageType::kSwapProgress:
      outcome = check(decode<SwapProgress>(packet));
      break;
    case MessageType::kRegistered:
      outcome = check(decode<Registered>(packet));
      break;
    case MessageType::kRefused:
      outcome = check(decode<Refused>(packet));
      break;
    case MessageType::kLockOk:
      outcome = check(decode<LockOk>(packet));
      break;
    case MessageType::kDropLock:
      outcome = check(decode<DropLock>(packet));
      break;
    case MessageType::kKeepLock:
      outcome = check(decode<KeepLock>(packet));
      break;
    case MessageType::kLockPaused:
      outcome = check(decode<LockPaused>(packet));
      break;
    case MessageType::kLockResumed:
      outcome = check(decode<LockResumed>(packet));
      break;
    case MessageType::kAskProgress:
      outcome = check(decode<AskProgress>(packet));
      break;
    case MessageType::kProgress:
      outcome = check(decode<Progress>(packet));
      break;
    case MessageType::kPrefetch:
      outcome = check(decode<Prefetch>(packet));
      break;
    case MessageType::kKeepsMemory:
      outcome = check(decode<KeepsMemory>(packet));
      break;
    case MessageType::kDrained:
      outcome = check(decode<Drained>(packet));
      break;
    case MessageType::kEndsSoon:
      outcome = check(decode<EndsSoon>(packet));
      break;
    case MessageType::kWaitForMem:
      outcome = check(decode<WaitForMem>(packet));
      break;
    case MessageType::kMemAvailable:
      outcome = check(decode<MemAvailable>(packet));
      break;
    case MessageType::kEvict:
      outcome = check(decode<Evict>(packet));
      break;
    case MessageType::kUpdateLimit:
      outcome = check(decode<UpdateLimit>(packet));
      break;
    case MessageType::kContention:
      outcome = check(decode<Contention>(packet));
      break;
    case MessageType::kTenantUse:
      outcome = check(decode<TenantUse>(packet));
      break;
    case MessageType::kAskOwn:
      outcome = check(decode<AskOwn>(packet));
      break;
    case MessageType::kOwnReport:
      outcome = check(decode<OwnReport>(packet));
      break;
    case MessageType::kAskWhyWaiting:
      outcome = check(decode<AskWhyWaiting>(packet));
      break;
    case MessageType::kWhyWaiting:
      outcome = check(decode<WhyWaiting>(packet));
      break;
    case MessageType::kImport:
      outcome = check(decode<Import>(packet));
      break;
    case MessageType::kExportWanted:
      outcome = check(decode<ExportWanted>(packet));
      break;
    case MessageType::kExported:
      outcome = check(decode<Exported>(packet));
      break;
    case MessageType::kImported:
      outcome = check(decode<Imported>(packet));
      break;
    case MessageType::kImportClosed:
      outcome = check(decode<ImportClosed>(packet));
      break;
    case MessageType::kExportEnded:
      outcome = check(decode<ExportEnded>(packet));
      break;
    case MessageType::kImportInherited:
      outcome = check(decode<ImportInherited>(packet));
      break;
    case MessageType::kArenaRequest:
      outcome = check(decode<ArenaRequest>(packet));
      break;
    case MessageType::kArenaReturned:
      outcome = check(decode<ArenaReturned>(packet));
      break;
    case MessageType::kArenaShrunk:
      outcome = check(decode<ArenaShrunk>(packet));
      break;
    case MessageType::kArenaHeld:
      outcome = check(decode<ArenaHeld>(packet));
      break;
    case MessageType::kPrepareSwap:
      outcome = check(decode<PrepareSwap>(packet));
      break;
    case MessageType::kArenaSegment:
      outcome = check(decode<ArenaSegment>(packet));
      break;
    case MessageType::kArenaRefused:
      outcome = check(decode<ArenaRefused>(packet));
      break;
    case MessageType::kArenaShrink:
      outcome = check(decode<ArenaShrink>(packet));
      break;
    case MessageType::kAskMps:
      outcome = check(decode<AskMps>(packet));
      break;
    case MessageType::kMpsGroup:
      outcome = check(decode<MpsGroup>(packet));
      break;
    case MessageType::kAskHeadroom:
      outcome = check(decode<AskHeadroom>(packet));
      break;
    case MessageType::kHeadroom:
      outcome = check(decode<Headroom>(packet));
      break;
    case MessageType::kRecallHeadroom:
      outcome = check(decode<RecallHeadroom>(packet));
      break;
    case MessageType::kHeadroomReturned:
      outcome = check(decode<HeadroomReturned>(packet));
      break;
    case MessageType::kHeadroomTaken:
      outcome = check(decode<HeadroomTaken>(packet));
      break;
  }
  if (!outcome) return outcome.error();
  return *type;
}

template <typename Payload, typename Change>
std::string refusal(Payload payload, Change change) {
  change(payload);
  auto decoded = decode<Payload>(encode(payload).span());
  return decoded ? "accepted" : decoded.error().text;
}

TEST(Codec, ChunksThatDoNotAddUpAreRefused) {
  const Exported good{1, 100, 64, 2, 1, 0, {}};
  EXPECT_EQ(refusal(good, [](Exported&) {}), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.chunks = 3; }), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.first = 2; }), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.chunk_bytes = 0; }), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.bytes = 0; }), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.bytes = UINT64_MAX; }), "accepted");
  EXPECT_NE(refusal(good, [](Exported& m) { m.status = 4; }), "accepted");
  EXPECT_EQ(refusal(Exported{1, 0, 0, 0, 0, 2, {}}, [](Exported&) {}), "accepted") << "a refusal needs no sums";
}

TEST(Codec, AMessageCarriesOnlyTheDescriptorsThatItsTypeAllows) {
  EXPECT_TRUE(check_descriptors(MessageType::kReqLock, 0));
  auto refused = check_descriptors(MessageType::kReqLock, 1);
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().text, "ReqLock comes with 1 descriptors; accepted: 0 to 0");
  EXPECT_TRUE(check_descriptors(MessageType::kImported, kChunksPerMessage));
  EXPECT_FALSE(check_descriptors(MessageType::kImported, kChunksPerMessage + 1));
  EXPECT_FALSE(check_descriptors(static_cast<MessageType>(9999), 1));
}

TEST(Codec, EveryMessageComesBackAsItWasSent) {
  auto packets = valid_packets();
  std::vector<MessageType> seen;
  for (const Bytes& packet : packets) {
    auto type = decode_any(packet);
    ASSERT_TRUE(type) << type.error().text;
    EXPECT_STRNE(name_of(*type), "unknown");
    seen.push_back(*type);
  }
  EXPECT_EQ(seen.size(), packets.size());
  auto released = decode<LockReleased>(encode(good_released()).span());
  ASSERT_TRUE(released);
  EXPECT_EQ(released->grant.grant, 8u);
  EXPECT_EQ(released->memory.resident, 5u);
  EXPECT_STREQ(decode<Register>(encode(good_register()).span())->program, "train");
}

TEST(Codec, TheWireLayoutIsLittleEndian) {
  Bytes packet = bytes_of(encode(ReqLock{0x0102030405060708}, 1));
  const unsigned char expected[] = {2, 0, 1, 0, 16, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  ASSERT_EQ(packet.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(packet.data(), expected, sizeof expected), 0);
}

TEST(Codec, RefusesWrongLengths) {
  for (const Bytes& valid : valid_packets()) {
    for (size_t length = 0; length < valid.size(); ++length) EXPECT_FALSE(decode_any({valid.data(), length}));
    Bytes longer = valid;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode_any(longer));
    uint32_t length = static_cast<uint32_t>(longer.size());
    std::memcpy(longer.data() + 4, &length, sizeof length);  // an honest header, a payload of the wrong size
    EXPECT_FALSE(decode_any(longer));
  }
  EXPECT_FALSE(decode_any(Bytes(kMessageBytesMax + 1)));
}

TEST(Codec, RefusesUnknownTypesAndVersions) {
  for (int type = 0; type < 65536; ++type) {
    const ReqLock any{1};
    Packet packet = encode(static_cast<MessageType>(type), kVersionMax, &any, sizeof any);
    bool eight_byte_payload = type == 2 || type == 9 || type == 10 || type == 24 || type == 68 || type == 75 || type == 17 || type == 34 ||
                              type == 80 || type == 84;
    EXPECT_EQ(static_cast<bool>(decode_any(packet.span())), eight_byte_payload) << type;
  }
  EXPECT_FALSE(decode_any(encode(ReqLock{1}, 0).span()));
  EXPECT_FALSE(decode_any(encode(ReqLock{1}, kVersionMax + 1).span()));
}

TEST(Codec, NamesTheWrongField) {
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.backend = 3; }).find("backend is 3; accepted: 0 to 2"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.has_lock = 2; }).find("has_lock"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.wants_lock = 9; }).find("wants_lock"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.version_min = 0; }).find("version_min"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.gpu_total_bytes = 0; }).find("gpu_total_bytes"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { std::memset(m.program, 'x', sizeof m.program); }).find("program"),
            std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { std::memset(m.gpu_name, 'x', sizeof m.gpu_name); }).find("gpu_name"),
            std::string::npos);
  EXPECT_NE(refusal(good_released(), [](LockReleased& m) { m.reason = 3; }).find("reason"), std::string::npos);
  EXPECT_NE(refusal(good_released(), [](LockReleased& m) { m.memory.resident = 11; }).find("resident"), std::string::npos);
  EXPECT_NE(refusal(good_released(), [](LockReleased& m) { m.memory.unswappable = 11; }).find("unswappable"), std::string::npos);
  EXPECT_NE(refusal(good_released(), [](LockReleased& m) { m.memory.allocated = UINT64_MAX; }).find("allocated"), std::string::npos);
  EXPECT_NE(refusal(DropLock{}, [](DropLock& m) { m.together = 2; }).find("together"), std::string::npos);
  EXPECT_NE(refusal(DropLock{}, [](DropLock& m) { m.tells_end = 2; }).find("tells_end"), std::string::npos);
  EXPECT_NE(refusal(good_progress(), [](SwapProgress& m) { m.direction = 3; }).find("direction"), std::string::npos);
  EXPECT_NE(refusal(good_progress(), [](SwapProgress& m) { m.copied = 65; }).find("copied"), std::string::npos);
  EXPECT_NE(refusal(good_progress(), [](SwapProgress& m) { m.elapsed_ns = UINT64_MAX; }).find("elapsed_ns"), std::string::npos);
  EXPECT_NE(refusal(TenantUse{}, [](TenantUse& m) { m.processes = kTenantProcessesMax + 1; }).find("processes"), std::string::npos);
  EXPECT_NE(refusal(TenantUse{}, [](TenantUse& m) { m.first = 1; }).find("first"), std::string::npos);
  EXPECT_EQ(refusal(Contention{0, 0, 0, kLimitedAll, kIdleReleaseUsMax, 1, {}, kIdleReleaseUsMax, 1, {}}, [](Contention&) {}), "accepted");
  EXPECT_NE(refusal(Contention{}, [](Contention& m) { m.limited = kLimitedAll + 1; }).find("limited"), std::string::npos);
  EXPECT_NE(refusal(Contention{}, [](Contention& m) { m.gang_runs = 2; }).find("gang_runs"), std::string::npos);
  EXPECT_NE(refusal(Contention{}, [](Contention& m) { m.pause_us = kIdleReleaseUsMax + 1; }).find("pause_us"), std::string::npos);
  EXPECT_NE(refusal(LockPaused{}, [](LockPaused& m) { m.used_ns = kDurationNsMax + 1; }).find("used_ns"), std::string::npos);
  EXPECT_NE(refusal(Contention{}, [](Contention& m) { m.idle_release_us = kIdleReleaseUsMax + 1; }).find("idle_release_us"),
            std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.lease = kLeaseMax + 1; }).find("lease"), std::string::npos);
  EXPECT_NE(refusal(good_register(), [](Register& m) { m.memory.charged = kMemoryBytesMax + 1; }).find("charged"), std::string::npos);
  for (const char* bad : {"-a", "_a", "a/b", "..", ".", "a.daemon", "a b", "\n", "\xc3\xa4", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    const std::string why = refusal(AskMps{}, [&](AskMps& m) { std::strcpy(m.group, bad); });
    EXPECT_NE(why.find("accepted: 1 to 32 letters"), std::string::npos) << bad << ": " << why;
  }
  EXPECT_NE(refusal(AskMps{}, [](AskMps& m) { std::memset(m.group, 'x', sizeof m.group); }).find("group has no NUL"), std::string::npos);
  EXPECT_NE(refusal(MpsGroup{}, [](MpsGroup& m) { m.state = 3; }).find("state"), std::string::npos);
  EXPECT_NE(refusal(MpsGroup{}, [](MpsGroup& m) { std::memset(m.directory, 'x', sizeof m.directory); }).find("directory"),
            std::string::npos);
  EXPECT_NE(refusal(MpsGroup{}, [](MpsGroup& m) { std::memset(m.reason, 'x', sizeof m.reason); }).find("reason"), std::string::npos);
  EXPECT_NE(refusal(AskHeadroom{1, 1, 0}, [](AskHeadroom& m) { m.bytes = 0; }).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(AskHeadroom{1, 1, 0}, [](AskHeadroom& m) { m.bytes = kLeaseMax + 1; }).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(AskHeadroom{1, 1, 0}, [](AskHeadroom& m) { m.returned = kLeaseMax + 1; }).find("returned"), std::string::npos);
  EXPECT_NE(refusal(HeadroomTaken{1}, [](HeadroomTaken& m) { m.bytes = kMemoryBytesMax + 1; }).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(Headroom{1, 1, 0, 0, 1, {}}, [](Headroom& m) { m.granted = 2; }).find("granted"), std::string::npos);
  EXPECT_NE(refusal(RecallHeadroom{1, 1}, [](RecallHeadroom& m) { m.bytes = kLeaseMax + 1; }).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(HeadroomReturned{1, 1, 0}, [](HeadroomReturned& m) { m.charged = UINT64_MAX; }).find("charged"), std::string::npos);
  EXPECT_NE(refusal(Refused{"no", 0, {}}, [](Refused& m) { m.barred = 2; }).find("barred"), std::string::npos);
  EXPECT_NE(refusal(Refused{}, [](Refused& m) { std::memset(m.reason, 'x', sizeof m.reason); }).find("reason"), std::string::npos);
  EXPECT_NE(refusal(ArenaRequest{1, kArenaUnitBytes, 2, 0, {}}, [](ArenaRequest&) {}).find("owner"), std::string::npos);
  EXPECT_NE(refusal(ArenaRequest{1, kArenaUnitBytes, 0, 2, {}}, [](ArenaRequest&) {}).find("urgent"), std::string::npos);
  EXPECT_NE(refusal(ArenaRequest{1, kArenaUnitBytes + 1, 0, 0, {}}, [](ArenaRequest&) {}).find("total"), std::string::npos);
  EXPECT_NE(refusal(ArenaRequest{1, 2 * kArenaBytesMax, 0, 0, {}}, [](ArenaRequest&) {}).find("total"), std::string::npos);
  EXPECT_NE(refusal(ArenaSegment{1, 0, 0, {}}, [](ArenaSegment&) {}).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(ArenaSegment{1, kArenaSegmentBytesMax + kArenaUnitBytes, 0, {}}, [](ArenaSegment&) {}).find("bytes"),
            std::string::npos);
  EXPECT_NE(refusal(ArenaHeld{1, kArenaUnitBytes, 9, {}}, [](ArenaHeld&) {}).find("owner"), std::string::npos);
  EXPECT_NE(refusal(ArenaShrunk{1, UINT64_MAX}, [](ArenaShrunk&) {}).find("bytes"), std::string::npos);
  EXPECT_NE(refusal(Registered{1, {}, 0, 0, 0, 0}, [](Registered& m) { m.version = 99; }).find("version"), std::string::npos);
  EXPECT_NE(refusal(About{}, [](About& m) { std::memset(m.release, 'x', sizeof m.release); }).find("release"), std::string::npos);
}

TEST(Codec, SidesWithoutACommonVersionStillUnderstandTheRefusal) {
  Register newer = good_register();
  newer.version_min = 77;
  newer.version_max = 78;
  newer.backend = 200;  // means something in that version
  Packet packet = encode(newer, 77);
  Bytes longer = bytes_of(packet);
  longer.resize(kMessageBytesMax);
  uint32_t length = kMessageBytesMax;
  std::memcpy(longer.data() + 4, &length, sizeof length);
  for (const Bytes& bytes : {bytes_of(packet), longer}) {
    auto decoded = decode<Register>(bytes);
    ASSERT_TRUE(decoded) << decoded.error().text;
    EXPECT_EQ(decoded->version_min, 77);
    EXPECT_EQ(decoded->version_max, 78);
    EXPECT_EQ(decoded->backend, 0);
  }
  auto refused = decode<Refused>(encode(Refused{"too old", 0, {}}, 77).span());
  ASSERT_TRUE(refused);
  EXPECT_STREQ(refused->reason, "too old");
  Bytes tiny = bytes_of(encode(ReqLock{0}, 77));
  const uint16_t type = static_cast<uint16_t>(MessageType::kRegister);
  std::memcpy(tiny.data(), &type, sizeof type);
  tiny.resize(10);
  length = 10;
  std::memcpy(tiny.data() + 4, &length, sizeof length);
  EXPECT_FALSE(decode_any(tiny));
}

TEST(Codec, TheNewestCommonVersionIsSpoken) {
  EXPECT_EQ(version_spoken(), kVersionMax);
  EXPECT_EQ(common_version(1, 1), 1);
  EXPECT_EQ(common_version(1, kVersionMax), kVersionMax);
  EXPECT_EQ(common_version(1, 99), kVersionMax);
  EXPECT_EQ(common_version(kVersionMax, 99), kVersionMax);
  EXPECT_EQ(common_version(kVersionMax + 1, 99), 0);
  EXPECT_EQ(common_version(0, kVersionMin - 1), 0);
}

TEST(Codec, AnEarlierVersionKnowsNothingOfLaterOnes) {
  const Registered full{1, {}, 2, 3, 4, 5, 6, 7, 8, 9, "1.2", 3, "train"};
  const Packet first = encode(full, 1);
  EXPECT_EQ(first.length, sizeof(Header) + offsetof(Registered, release));
  auto decoded = decode<Registered>(first.span());
  ASSERT_TRUE(decoded) << decoded.error().text;
  EXPECT_EQ(decoded->gpu_total_bytes, 9u);
  EXPECT_STREQ(decoded->release, "") << "what was not told is empty";
  EXPECT_STREQ(decode<Registered>(encode(full, 2).span())->release, "1.2");
  // A message that is longer or shorter than its version has it.
  Packet wrong = encode(full, 2);
  wrong.bytes[2] = std::byte{1};
  EXPECT_FALSE(decode_any(wrong.span()));
  wrong = encode(full, 1);
  wrong.bytes[2] = std::byte{2};
  EXPECT_FALSE(decode_any(wrong.span()));

  EXPECT_EQ(encode(About{"1.2"}, 1).length, 0u) << "not to be sent";
  Packet about = encode(About{"1.2"}, 2);
  about.bytes[2] = std::byte{1};
  auto refused = decode_any(about.span());
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().text, "version 1 has no About");

  EXPECT_TRUE(check_version(encode(ReqLock{1}, 1).span(), 1));
  EXPECT_STREQ(check_version(encode(ReqLock{1}, 2).span(), 1).error().text, "ReqLock has version 2; this connection speaks 1");
  EXPECT_TRUE(check_version(encode(Refused{"no", 0, {}}, kVersionMin).span(), kVersionMax)) << "may come before any is agreed on";
}

// A client of versions 1 to 3 begins with a Register of version 1; a scheduler that speaks 2 and 3 only must be able to read it.
TEST(Codec, RegisterIsReadInFullWhateverVersionItHas) {
  Register message = good_register();
  message.version_min = 77;
  message.version_max = 78;
  auto decoded = decode<Register>(encode(message, 77).span());
  ASSERT_TRUE(decoded) << decoded.error().text;
  EXPECT_EQ(std::memcmp(&*decoded, &message, sizeof message), 0);
}

TEST(Codec, RefusesAPacketOfAnotherType) {
  auto decoded = decode<DropLock>(encode(ReqLock{1}).span());
  ASSERT_FALSE(decoded);
  EXPECT_NE(std::strstr(decoded.error().text, "ReqLock"), nullptr);
}

TEST(Codec, AnOversizedPayloadGivesAnEmptyPacket) {
  std::byte large[kMessageBytesMax] = {};
  EXPECT_EQ(encode(MessageType::kReqLock, 1, large, sizeof large).length, 0u);
}

// What decodes must satisfy what the codec promises, whatever bytes came in.
void expect_promises(std::span<const std::byte> packet) {
  auto type = decode_any(packet);
  if (!type) {
    EXPECT_NE(type.error().text[0], '\0');
    return;
  }
  if (*type == MessageType::kMemUpdate) {
    auto message = decode<MemUpdate>(packet);
    EXPECT_LE(message->memory.resident, message->memory.allocated);
    EXPECT_LE(message->memory.allocated, kMemoryBytesMax);
  } else if (*type == MessageType::kRegister) {
    auto message = decode<Register>(packet);
    EXPECT_LT(strnlen(message->program, sizeof message->program), sizeof message->program);
    EXPECT_LE(message->backend, 2);
  } else if (*type == MessageType::kSwapProgress) {
    auto message = decode<SwapProgress>(packet);
    EXPECT_LE(message->copied, message->moved);
    EXPECT_LE(message->direction, 1);
  }
}

TEST(Codec, MutatedPacketsAreRefusedOrKeepTheirPromises) {
  const char* given = std::getenv("NVSHARE_TEST_SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  SCOPED_TRACE("NVSHARE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto packets = valid_packets();
  for (int round = 0; round < 200'000; ++round) {
    Bytes packet = packets[random() % packets.size()];
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      size_t at = random() % packet.size();
      switch (random() % 4) {
        case 0:
          packet[at] ^= std::byte(1U << (random() % 8));
          break;
        case 1:
          packet[at] = std::byte(random() & 0xff);
          break;
        case 2:
          packet[at] = std::byte{0xff};
          break;
        case 3:
          packet.resize(8 + random() % (kMessageBytesMax - 8));
          break;
      }
    }
    if (random() % 2 == 0) {  // get past the length check half of the time
      uint32_t length = static_cast<uint32_t>(packet.size());
      std::memcpy(packet.data() + 4, &length, sizeof length);
    }
    expect_promises(packet);
    if (testing::Test::HasFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace nvshare::protocol
