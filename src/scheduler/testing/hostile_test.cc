// A program of the machine that does not use the library but speaks its protocol, and lies; against nvshare-scheduler as it is installed.
// Each test is an attack that once succeeded. docs/security.md has them all.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

#include "protocol/admin.h"
#include "scheduler/testing/test_lingering.h"
#include "scheduler/testing/test_program.h"

namespace nvshare::scheduler {
namespace {

using namespace std::chrono_literals;
using namespace protocol;

constexpr uint64_t kMiB = 1ULL << 20;
constexpr auto kSchedulersOwn = static_cast<uint8_t>(ArenaOwner::kScheduler);

class HostileTest : public ProgramTest {
 protected:
  ~HostileTest() override {
    if (scheduler_ <= 0) return;
    kill(scheduler_, SIGKILL);
    waitpid(scheduler_, nullptr, 0);
  }
  TestClient client() const { return TestClient(runtime_dir() + kClientSocket); }
  void run(const Variables& variables = {{"NVSHARE_LOG_LEVEL", "error"}}, int log_to = -1) { scheduler_ = start({}, variables, log_to); }

  // Ends the test where the scheduler has ended.
  bool serves() {
    if (waitpid(scheduler_, nullptr, WNOHANG) != 0) {
      scheduler_ = -1;
      return false;
    }
    return admin::decode_status(ask(R"({"request":"status"})")) ? true : false;
  }

  pid_t scheduler_ = -1;
};

TEST_F(HostileTest, NoOrderOfMessagesAboutHostMemoryEndsTheScheduler) {
  TestClient liar = client();
  run();
  auto registered = liar.join(test_registration(0));
  ASSERT_TRUE(registered);
  const uint64_t next = registered->epoch;  // what the ids began at, once
  liar.send(ArenaRequest{1, 64 * kMiB, kSchedulersOwn, 0, {}});
  for (uint64_t id = next; id < next + 4; ++id) {
    liar.send(ArenaHeld{id, 64 * kMiB, kSchedulersOwn, {}});
    liar.send(ArenaReturned{id});
  }
  auto lent = liar.expect<ArenaSegment>();
  EXPECT_TRUE(lent);
  ASSERT_TRUE(serves());
  EXPECT_TRUE(lent->segment < next || lent->segment > next + 1'000'000) << "an id that can be guessed";
}

// The scheduler stood in write(), and nobody was served any more.
TEST_F(HostileTest, ALogThatNobodyReadsHoldsUpNobody) {
  TestClient joiner = client();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  run({{"NVSHARE_LOG_LEVEL", "debug"}}, writer.get());
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(joiner.join(test_registration(0))) << i;  // each brings several lines about
  EXPECT_TRUE(serves());
  writer.reset();
  char part[65536];
  EXPECT_GT(read(reader.get(), part, sizeof part), 0);
  ASSERT_TRUE(joiner.join(test_registration(0)));
  EXPECT_NE(std::string(part, static_cast<size_t>(read(reader.get(), part, sizeof part))).find(" lines were dropped"), std::string::npos);
  reader.reset();  // and SIGPIPE ended it
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(joiner.join(test_registration(0))) << i;
  EXPECT_TRUE(serves());
}

// One descriptor with a message of any kind: the scheduler stood in close() until the connection had lingered.
TEST_F(HostileTest, SocketsThatLingerHoldUpNobody) {
  TestClient honest = client();
  run();
  ASSERT_TRUE(honest.join(test_registration(0)));
  const FileDescriptor liar(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (runtime_dir() + kClientSocket).c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(connect(liar.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  LingeringSocket told(600), unread(600), beyond(600);
  kill(scheduler_, SIGSTOP);  // so that its are the last ones
  const auto send_with = [&](const Packet& packet, FileDescriptor with, int copies) {
    Descriptors sent;
    for (int i = 0; i < copies; ++i) sent.add(FileDescriptor(dup(with.get())));
    ASSERT_GT(send_packet(liar.get(), packet.span(), sent, MSG_NOSIGNAL), 0);
  };
  send_with(encode(test_registration(0), 1), {}, 0);
  send_with(encode(Exported{}), std::move(told.socket), 1);
  send_with(encode(ReqLock{1}), std::move(beyond.socket), 16);  // refused: none may come with it
  send_with(encode(ReqLock{2}), std::move(unread.socket), 1);   // never read
  kill(scheduler_, SIGCONT);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(honest.join(test_registration(0)));
  EXPECT_TRUE(serves());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

TEST_F(HostileTest, ATenantThatJoinsAgainAndAgainDoesNotFillTheLog) {
  TestClient joiner = client();
  run({{"NVSHARE_LOG_LEVEL", "info"}});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(joiner.join(test_registration(0))) << i;
  EXPECT_TRUE(serves());
  const std::string log = said();
  EXPECT_NE(log.find(" joined: "), std::string::npos);
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 60) << "two for each join, once";
}

// A segment of 64 MiB that was lent to a client, as its process sees it: open and mapped.
struct LentSegment {
  uint64_t id = 0;
  FileDescriptor memory;
  char* data = nullptr;

  ~LentSegment() { let_go(); }
  void let_go() {
    if (data != nullptr) munmap(data, 64 * kMiB);
    data = nullptr;
    memory.reset();
  }
  ino_t inode() const {
    struct stat about {};
    fstat(memory.get(), &about);
    return about.st_ino;
  }
  bool is_zero() const {
    return std::all_of(data, data + 64 * kMiB, [](char c) { return c == 0; });
  }
};

class HostileMemoryTest : public HostileTest {
 protected:
  void run_with_64_mib() {
    run({{"NVSHARE_LOG_LEVEL", "error"}, {"NVSHARE_HOST_MEMORY_BUDGET", "64Mi"}, {"NVSHARE_HOST_ARENA", "scheduler"}});
  }
  // Asks for 64 MiB. False: refused.
  static bool borrow(TestClient& client, LentSegment* lent) {
    static uint64_t request = 0;
    client.send(ArenaRequest{++request, 64 * kMiB, kSchedulersOwn, 1, {}});
    client.send(AskWhyWaiting{request});
    auto segment = client.expect<ArenaSegment>();
    if (!segment || client.received().count() != 1) return false;
    lent->id = segment->segment;
    lent->memory = client.received().take(0);
    void* data = mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, lent->memory.get(), 0);
    if (data == MAP_FAILED) return false;
    lent->data = static_cast<char*>(data);
    client.send(AskWhyWaiting{request});  // the next message makes the client's process close its own copy
    return client.expect<WhyWaiting>().has_value();
  }
  static bool is_refused(TestClient& client) {
    client.send(ArenaRequest{1'000'000, 64 * kMiB, kSchedulersOwn, 1, {}});
    return client.expect<ArenaRefused>().has_value();
  }
  int64_t reserved() {
    auto report = admin::decode_status(ask(R"({"request":"status"})"));
    return report ? report->host_memory_reserved : -1;
  }
  template <typename Condition>
  static bool eventually(Condition condition) {
    for (auto end = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
  void tenant_of_its_own(const TestClient& client) {
    EXPECT_NE(ask((R"({"request":"tenant","name":"t","pid":)" + std::to_string(client.pid()) + "}").c_str()).find("tenant"),
              std::string::npos);
  }
};

TEST_F(HostileMemoryTest, AReturnedSegmentIsEmptiedAndNoOtherTenantGetsIt) {
  TestClient liar = client();
  TestClient other = client();
  run_with_64_mib();
  ASSERT_TRUE(serves());
  tenant_of_its_own(liar);
  tenant_of_its_own(other);
  ASSERT_TRUE(liar.join(test_registration(0)));
  ASSERT_TRUE(other.join(test_registration(0)));
  LentSegment kept;
  ASSERT_TRUE(borrow(liar, &kept));
  std::memset(kept.data, 0xaa, 64 * kMiB);
  liar.send(ArenaReturned{kept.id});  // and has it still
  liar.send(AskWhyWaiting{1});
  ASSERT_TRUE(liar.expect<WhyWaiting>());  // the scheduler has heard it, before the other asks
  EXPECT_TRUE(is_refused(other)) << "there are no other 64 MiB while somebody has these";
  EXPECT_TRUE(eventually([&] { return kept.is_zero(); }));
  std::memset(kept.data, 0xbb, 64 * kMiB);
  EXPECT_EQ(reserved(), static_cast<int64_t>(64 * kMiB)) << "2.5 times the budget were counted as free";
  EXPECT_TRUE(is_refused(other));
  EXPECT_TRUE(eventually([&] { return kept.is_zero(); })) << "it is emptied again and again";
  const ino_t inode = kept.inode();
  kept.let_go();
  EXPECT_TRUE(eventually([&] { return reserved() == 0; }));
  LentSegment fresh;
  ASSERT_TRUE(borrow(other, &fresh));
  EXPECT_NE(fresh.inode(), inode);
  EXPECT_TRUE(fresh.is_zero());
}

TEST_F(HostileMemoryTest, WhoKeepsADeadProgramsSegmentFindsItEmptyAndIsCounted) {
  LentSegment kept;
  {
    TestClient lender = client();
    run_with_64_mib();
    ASSERT_TRUE(lender.join(test_registration(0)));
    ASSERT_TRUE(borrow(lender, &kept));
    std::memset(kept.data, 0xaa, 64 * kMiB);
    // While its process lives, a connection that breaks costs it nothing.
    ASSERT_TRUE(lender.join(test_registration(0)));
    lender.send(ArenaHeld{kept.id, 64 * kMiB, kSchedulersOwn, {}});
    lender.send(AskWhyWaiting{1});
    ASSERT_TRUE(lender.expect<WhyWaiting>());
    EXPECT_EQ(reserved(), static_cast<int64_t>(64 * kMiB));
    std::this_thread::sleep_for(200ms);
    EXPECT_EQ(kept.data[5], static_cast<char>(0xaa));
  }
  EXPECT_TRUE(eventually([&] { return kept.is_zero(); }));
  kept.data[5] = 1;
  EXPECT_EQ(reserved(), static_cast<int64_t>(64 * kMiB));
  kept.let_go();
  EXPECT_TRUE(eventually([&] { return reserved() == 0; }));
}

TEST_F(HostileMemoryTest, ClaimsOfHeldSegmentsAndHugeRequestsUseUpNothing) {
  TestClient liar = client();
  run({{"NVSHARE_LOG_LEVEL", "error"}});
  ASSERT_TRUE(liar.join(test_registration(0)));
  for (uint64_t id = 1; id <= 200; ++id) liar.send(ArenaHeld{id, 256 * kMiB, static_cast<uint8_t>(id % 2), {}});
  liar.send(ArenaRequest{1, kArenaBytesMax, static_cast<uint8_t>(ArenaOwner::kProcess), 1, {}});  // 512 TiB
  ASSERT_TRUE(liar.expect<ArenaRefused>());
  EXPECT_LE(reserved(), static_cast<int64_t>(21ULL << 30)) << "the GPU has 16 GiB";
}

// The kernel refuses descriptors while another program of this user has many on their way. Segments vanished, without a word.
TEST_F(HostileMemoryTest, DescriptorsThatTheKernelTakesNoMoreOfAreHeldUpAndThenRefused) {
  constexpr rlim_t kDescriptorsMost = 256;
  TestClient borrower = client();
  scheduler_ = start({}, {{"NVSHARE_LOG_LEVEL", "error"}, {"NVSHARE_HOST_ARENA", "scheduler"}}, -1, [] {
    const rlimit limit{kDescriptorsMost, kDescriptorsMost};
    setrlimit(RLIMIT_NOFILE, &limit);
    prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
    prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN);
  });
  ASSERT_TRUE(borrower.join(test_registration(0)));
  const FileDescriptor any(open("/dev/null", O_RDONLY | O_CLOEXEC));
  FileDescriptor ends[2];
  const auto fill = [&] {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ends[0].reset(pair[0]);
    ends[1].reset(pair[1]);
    for (rlim_t sent = 0; sent <= 2 * kDescriptorsMost; sent += Descriptors::kMax) {
      Descriptors many;
      for (int i = 0; i < Descriptors::kMax; ++i) many.add(FileDescriptor(dup(any.get())));
      ASSERT_GT(send_packet(ends[0].get(), std::as_bytes(std::span("x")), many, 0), 0);
    }
  };
  fill();
  borrower.send(ArenaRequest{1, 64 * kMiB, kSchedulersOwn, 1, {}});
  EXPECT_FALSE(borrower.comes_within<ArenaSegment>(300ms)) << "the test shows nothing";
  borrower.send(ReqLock{1});
  EXPECT_TRUE(borrower.expect<LockOk>()) << "what carries no descriptors goes past";
  for (FileDescriptor& end : ends) end.reset();
  EXPECT_TRUE(borrower.expect<ArenaSegment>());
  EXPECT_EQ(borrower.received().count(), 1);
  fill();
  borrower.send(ArenaRequest{2, 128 * kMiB, kSchedulersOwn, 1, {}});
  auto refused = borrower.expect<ArenaRefused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->missing, 64 * kMiB);
  EXPECT_TRUE(serves());
}

}  // namespace
}  // namespace nvshare::scheduler
