#include "interposer/link/tenant_query.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

namespace nvshare::interposer {
namespace {

using protocol::encode;
using protocol::kVersionMin;

constexpr uint8_t kUuid[16] = {1, 2, 3};
constexpr int kPatience_ms = 50;

// The scheduler's end of the connection. What it says lies in the socket before it is asked.
class Scheduler {
 public:
  Scheduler() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    asker_.reset(ends[0]);
    own_.reset(ends[1]);
  }

  void say(const auto& message) {
    const protocol::Packet packet = encode(message, kVersionMin);
    EXPECT_EQ(send(own_.get(), packet.bytes, packet.length, MSG_NOSIGNAL), static_cast<ssize_t>(packet.length));
  }

  void welcome() {
    protocol::Registered terms{};
    terms.version = kVersionMin;
    say(terms);
  }

  // Processes number first .. of `all`, each with its number in MiB.
  void tell(uint32_t first, uint32_t all) {
    protocol::TenantUse part{
        .memory_limit = 100, .gpu_total_bytes = 1000, .allocated = 60, .processes = all, .first = first, .process = {}};
    const uint32_t here = std::min(all - first, protocol::kProcessesPerMessage);
    for (uint32_t i = 0; i < here; ++i) part.process[i] = {static_cast<int32_t>(first + i + 1), 0, (first + i + 1) << 20};
    say(part);
  }

  void hang_up() { own_.reset(); }

  std::optional<TenantUse> answer() {
    TenantUse use;
    if (!TenantQuery(std::move(asker_), kPatience_ms).ask(kUuid, 5000, 70, &use)) return std::nullopt;
    return use;
  }

  protocol::Register question() {
    protocol::Packet packet;
    packet.length = static_cast<uint32_t>(recv(own_.get(), packet.bytes, sizeof packet.bytes, MSG_DONTWAIT));
    const auto hello = protocol::decode<protocol::Register>(packet.span());
    EXPECT_TRUE(hello);
    return hello ? *hello : protocol::Register{};
  }

 private:
  FileDescriptor asker_, own_;
};

TEST(TenantQuery, AsksWithoutBecomingAClient) {
  Scheduler scheduler;
  scheduler.welcome();
  scheduler.tell(0, 2);
  const auto use = scheduler.answer();
  ASSERT_TRUE(use);
  EXPECT_EQ(use->limit, 100u);
  EXPECT_EQ(use->total, 1000u);
  EXPECT_EQ(use->used, 60u);
  ASSERT_EQ(use->processes.size(), 2u);
  EXPECT_EQ(use->processes[1].pid, 2);
  EXPECT_EQ(use->processes[1].allocated, uint64_t{2} << 20);
  const protocol::Register hello = scheduler.question();
  EXPECT_EQ(hello.asks_only, 1);
  EXPECT_EQ(memcmp(hello.gpu_uuid, kUuid, sizeof kUuid), 0);
  EXPECT_EQ(hello.gpu_total_bytes, 5000u);
  EXPECT_EQ(hello.memory_limit, 70u);
}

TEST(TenantQuery, ATenantWithNothingHasNoProcesses) {
  Scheduler scheduler;
  scheduler.welcome();
  scheduler.tell(0, 0);
  const auto use = scheduler.answer();
  ASSERT_TRUE(use);
  EXPECT_TRUE(use->processes.empty());
}

TEST(TenantQuery, PutsAnAnswerOfSeveralMessagesTogether) {
  const uint32_t all = 2 * protocol::kProcessesPerMessage + 1;
  Scheduler scheduler;
  scheduler.welcome();
  for (uint32_t first = 0; first < all; first += protocol::kProcessesPerMessage) scheduler.tell(first, all);
  const auto use = scheduler.answer();
  ASSERT_TRUE(use);
  ASSERT_EQ(use->processes.size(), all);
  for (uint32_t i = 0; i < all; ++i) EXPECT_EQ(use->processes[i].pid, static_cast<int32_t>(i + 1));
}

TEST(TenantQuery, HasNoAnswerWhereTheSchedulerGivesNoneOrHalfOfOne) {
  const uint32_t all = protocol::kProcessesPerMessage + 1;
  const std::pair<const char*, void (*)(Scheduler&)> cases[] = {
      {"nothing said", [](Scheduler&) {}},
      {"no welcome", [](Scheduler& scheduler) { scheduler.tell(0, 0); }},
      {"refused",
       [](Scheduler& scheduler) {
         scheduler.say(protocol::Refused{});
         scheduler.hang_up();
       }},
      {"welcome alone", [](Scheduler& scheduler) { scheduler.welcome(); }},
      {"gone",
       [](Scheduler& scheduler) {
         scheduler.welcome();
         scheduler.hang_up();
       }},
      {"the second half is missing",
       [](Scheduler& scheduler) {
         scheduler.welcome();
         scheduler.tell(0, all);
       }},
      {"the first half is missing",
       [](Scheduler& scheduler) {
         scheduler.welcome();
         scheduler.tell(protocol::kProcessesPerMessage, all);
       }},
      {"the first half twice",
       [](Scheduler& scheduler) {
         scheduler.welcome();
         scheduler.tell(0, all);
         scheduler.tell(0, all);
       }},
  };
  for (const auto& [what, say] : cases) {
    Scheduler scheduler;
    say(scheduler);
    EXPECT_FALSE(scheduler.answer()) << what;
  }
}

TEST(TenantQuery, HasNoAnswerWithoutAScheduler) {
  TenantUse use;
  EXPECT_FALSE(TenantQuery(FileDescriptor(), kPatience_ms).ask(kUuid, 5000, 0, &use));
}

}  // namespace
}  // namespace nvshare::interposer
