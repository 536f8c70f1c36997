// What goes over the wire in each version, byte for byte. A version that was released is never changed: golden/version_N.txt has one line
// "NAME HEX" for each of its messages, made once and kept. CONTRIBUTING.md says how a new version is added.
//
// Fields are given by name, so that one that moves within its struct is found out, whatever the values of its neighbours.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "protocol/codec.h"

namespace nvshare::protocol {
namespace {

constexpr uint64_t k(uint8_t number) { return 0x0102030405060700 + number; }  // every byte of a field differs from its neighbour

MemoryReport memory() {
  return {.allocated = 0x5040, .resident = 0x4030, .unswappable = 0x3020, .swappable_host = 0x2010, .charged = 0x6050};
}

Register hello() {
  Register message{.version_min = 1, .version_max = 7, .backend = 2, .has_lock = 1, .wants_lock = 0, .asks_only = 1};
  for (int i = 0; i < 16; ++i) message.gpu_uuid[i] = static_cast<uint8_t>(0xa0 + i);
  message.gpu_total_bytes = 0x123456789a;
  message.memory_limit = k(1);
  message.client_id = k(2);
  message.lease = 0x1122334455;
  message.node_limit = k(3);
  message.pid = 0x01020304;
  message.gpu_ordinal = 0x05060708;
  message.memory = memory();
  std::strcpy(message.gpu_name, "a card");
  std::strcpy(message.program, "a program");
  return message;
}

// Calls visit(payload) with one message of every type.
template <typename Visit>
void each_message(Visit visit) {
  const Grant grant{.epoch = k(1), .grant = k(2)};
  visit(hello());
  visit(ReqLock{.request = k(1)});
  visit(LockReleased{.grant = grant,
                     .reason = 2,
                     .reserved = {},
                     .idle_us = 0x01020304,
                     .reserved_too = 0x1122334455,
                     .used_ns = 0x66778899aa,
                     .memory = memory(),
                     .submissions = 0x334455});
  visit(MemUpdate{.memory = memory(), .budget = k(1), .budget_sequence = k(2), .reserved = k(3), .wanted = k(4), .request = k(5)});
  visit(SwapProgress{.direction = 1,
                     .finished = 0,
                     .failed = 1,
                     .mistaken = 0,
                     .reserved = {},
                     .id = k(1),
                     .moved = 0x8877665544,
                     .copied = 0x1122334455,
                     .elapsed_ns = 0x66778899aa,
                     .memory = memory(),
                     .unchanged = 0x7766554433});
  visit(AskWhyWaiting{.question = k(1)});
  visit(AskHeadroom{.request = k(1), .bytes = 0x1122334455, .returned = 0x66778899aa});
  visit(HeadroomReturned{.recall = k(1), .bytes = 0x1122334455, .charged = 0x66778899aa});
  visit(HeadroomTaken{.bytes = 0x1122334455});
  visit(Import{.request = k(1), .exporter = k(2), .export_id = k(3), .nonce = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}});
  visit(Exported{.ticket = k(1),
                 .bytes = 0x1122334455,
                 .chunk_bytes = 0x66778899aa,
                 .chunks = 0x010203,
                 .first = 0x0405,
                 .status = 3,
                 .reserved = {}});
  visit(ImportClosed{.request = k(1)});
  visit(ExportEnded{.export_id = k(1)});
  visit(Drained{.grant = grant, .attempt = k(3)});
  visit(LockPaused{.grant = grant, .used_ns = 0x1122334455, .submissions = 0x334455});
  visit(LockResumed{.grant = grant});
  visit(KeepsMemory{.why = "it called a new function"});
  visit(EndsSoon{.grant = grant, .attempt = k(3)});
  visit(Progress{.question = k(1), .submissions = 0x1122334455});
  visit(AskMps{.reserved = k(1), .group = "a-group"});
  visit(MpsGroup{.state = 2, .reserved = {}, .directory = "a directory", .reason = "a reason"});
  visit(AskOwn{.wish = 1, .reserved = {}, .tenant = k(1)});
  visit(ArenaRequest{.request = k(1), .total = 0x22 * kArenaUnitBytes, .owner = 1, .urgent = 0, .reserved = {}});
  visit(ArenaReturned{.segment = k(1)});
  visit(ArenaShrunk{.shrink = k(1), .bytes = 0x1122334455});
  visit(ArenaHeld{.segment = k(1), .bytes = 0x12 * kArenaUnitBytes, .owner = 1, .reserved = {}});
  visit(Registered{.version = 1,
                   .reserved = {},
                   .client_id = k(1),
                   .epoch = k(2),
                   .memory_limit = k(3),
                   .node_limit = k(4),
                   .lease = 0x1122334455,
                   .others_charged = k(5),
                   .memory_ceiling = k(6),
                   .gpu_total_bytes = k(7),
                   .release = "1.2.3",
                   .tenant = k(8),
                   .tenant_name = "team/train",
                   .skip_unchanged = 1});
  visit(About{.release = "4.5.6"});
  visit(Refused{.reason = "a reason", .barred = 1, .reserved = {}});
  visit(LockOk{.grant = grant, .budget = k(3), .budget_sequence = k(4)});
  visit(DropLock{.grant = grant, .attempt = k(3), .together = 1, .reserved = {}, .tells_end = 1});
  visit(WaitForMem{.request = k(1)});
  visit(MemAvailable{.request = k(1), .granted = 1, .reserved = {}, .budget = k(2), .budget_sequence = k(3)});
  visit(Evict{.eviction = k(1), .bytes = k(2)});
  visit(UpdateLimit{.memory_limit = k(1), .node_limit = k(2), .memory_ceiling = k(3), .others_charged = k(4)});
  visit(Contention{.waiters = 0x01020304,
                   .memory_waiters = 0x05060708,
                   .swap_cost_ns = k(1),
                   .limited = kLimitedCompute,
                   .idle_release_us = 0x00010203,
                   .gang_runs = 1,
                   .reserved = {},
                   .pause_us = 0x00040506,
                   .held = 1,
                   .reserved_too = {}});
  visit(WhyWaiting{.question = k(1), .text = "a neighbour"});
  visit(
      TenantUse{.memory_limit = k(1),
                .gpu_total_bytes = k(2),
                .allocated = 0x1122334455,
                .processes = 9,
                .first = 7,
                .process = {{.pid = 0x01020304, .reserved = 0, .allocated = k(3)}, {.pid = 0x05060708, .reserved = 0, .allocated = k(4)}}});
  visit(ExportWanted{.ticket = k(1), .export_id = k(2), .nonce = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}});
  visit(Imported{.request = k(1),
                 .bytes = 0x1122334455,
                 .chunk_bytes = 0x66778899aa,
                 .chunks = 0x010203,
                 .first = 0x0405,
                 .status = 2,
                 .reserved = {}});
  visit(ImportInherited{.request = k(1)});
  visit(KeepLock{.grant = grant});
  visit(OwnReport{.bytes = 0x1122334455});
  visit(AskProgress{.question = k(1), .counts = 1, .reserved = {}});
  visit(Prefetch{.prefetch = k(1), .budget = 0x1122334455});
  visit(PrepareSwap{.bytes = k(1)});
  visit(ArenaSegment{.segment = k(1), .bytes = 0x12 * kArenaUnitBytes, .owner = 1, .reserved = {}});
  visit(ArenaRefused{.request = k(1), .missing = k(2)});
  visit(ArenaShrink{.shrink = k(1), .bytes = k(2)});
  visit(Headroom{.request = k(1), .bytes = 0x1122334455, .limit = k(2), .others_charged = k(3), .granted = 1, .reserved = {}});
  visit(RecallHeadroom{.recall = k(1), .bytes = 0x1122334455});
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

std::map<std::string, std::string> golden(uint16_t version) {
  std::ifstream stream(GOLDEN_FOLDER "/version_" + std::to_string(version) + ".txt");
  std::map<std::string, std::string> lines;
  std::string name, bytes;
  while (stream >> name >> bytes) lines[name] = bytes;
  return lines;
}

class Golden : public testing::TestWithParam<uint16_t> {};

TEST_P(Golden, MessagesOfAVersionNeverChange) {
  const uint16_t version = GetParam();
  const std::map<std::string, std::string> kept = golden(version);
  std::string now;
  size_t messages = 0;
  each_message([&]<typename Payload>(const Payload& payload) {
    const Packet packet = encode(payload, version);
    const std::string name = TypeOf<Payload>::name;
    if (packet.length == 0) {
      EXPECT_GT(TypeOf<Payload>::since, version) << name;
      return;
    }
    now += name + " " + hex(packet.span()) + "\n";
    ++messages;
    const auto line = kept.find(name);
    if (line == kept.end()) {
      ADD_FAILURE() << name << " is not in the file";
      return;
    }
    EXPECT_EQ(line->second, hex(packet.span())) << name;
    auto decoded = decode<Payload>(packet.span());
    ASSERT_TRUE(decoded) << decoded.error().text;
    Payload expected{};  // what this version does not have is 0
    std::memcpy(&expected, &payload, packet.length - sizeof(Header));
    EXPECT_EQ(std::memcmp(&*decoded, &expected, sizeof expected), 0) << name << " is not what was sent";
  });
  EXPECT_EQ(kept.size(), messages);
  if (HasFailure()) std::cout << "version " << version << " as it is now:\n" << now;
}

INSTANTIATE_TEST_SUITE_P(Versions, Golden, testing::Range<uint16_t>(kVersionMin, kVersionMax + 1));

}  // namespace
}  // namespace nvshare::protocol
