// For tests: sessions of several clients of several tenants with an engine on virtual time: a few honest ones, and as many that lie.
//
// Honest clients 0 and 1 share a GPU with each other alone; where NVML runs, a third one shares one with liars. Each has turns, memory and
// host segments, and checks all that it can know. The scheduler is restarted every so often; liars come back under their own names, and
// their processes die. Processes are real ones, as the engine asks the kernel whether they live; time, ids and messages are not.
#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"
#include "scheduler/testing/test_liar.h"

namespace nvshare::scheduler {

class TestSession : public Transport, public SegmentMaker {
 public:
  struct Options {
    uint64_t seed = 1;
    bool liars = true;
    bool nvml = false;
  };
  static constexpr size_t kHonestApart = 2;  // on a GPU of their own

  explicit TestSession(const Options& options);
  ~TestSession() override;
  TestSession(const TestSession&) = delete;
  TestSession& operator=(const TestSession&) = delete;

  void step();
  // Empty, or what is wrong: cheap to ask, and after a look at all books.
  std::string problem();
  std::string wrong_in_books();

  int64_t messages() const { return messages_; }
  int64_t steps() const { return steps_; }
  uint64_t turns(size_t honest) const { return clients_[honest].turns; }
  policy::Duration time() const { return now_ - kSecond; }
  policy::Duration time_of_restarts() const { return restarts_ * kRestartGrace; }
  int64_t restarts() const { return restarts_; }

  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors descriptors) override;
  void close(ConnectionId connection) override;
  void make(SegmentId segment, int64_t bytes) override { jobs_.push_back({segment, bytes, FileDescriptor(), false}); }
  void discard(SegmentId segment, FileDescriptor memory, bool punch) override { jobs_.push_back({segment, 0, std::move(memory), punch}); }

 private:
  static constexpr policy::Duration kRestartGrace = kSecond;

  struct Process {
    pid_t pid = 0;
    int tenant = 0;
  };
  struct Received {
    protocol::Packet packet;
    Descriptors descriptors;
  };
  struct HeldSegment {
    SegmentId id = 0;
    int64_t bytes = 0;
    FileDescriptor memory;
  };
  struct Client {
    size_t index = 0;
    size_t process = 0;
    uint8_t gpu = 0;
    int64_t bytes = 0;
    ConnectionId connection = 0;
    bool registered = false;
    uint64_t id = 0;  // that it was given last
    bool was_refused = false;
    std::deque<Received> inbox;
    // Of an honest one.
    uint64_t joins = 0;
    int64_t resident = 0;
    uint64_t turns = 0;
    bool runs = false;
    policy::Instant turn_at = 0;
    std::optional<protocol::Grant> grant;
    uint64_t request = 0;
    uint64_t arena_request = 0;
    std::vector<HeldSegment> segments;
  };
  struct Job {
    SegmentId segment = 0;
    int64_t bytes = 0;  // 0: discard
    FileDescriptor memory;
    bool punch = false;
  };

  int tenant_of(pid_t pid) const;
  void start_engine();
  void restart();
  void revive(size_t process);
  void serve_jobs();
  void look_with_nvml();
  void connect(Client& client);
  void disconnect(Client& client);
  void deliver(Client& client, const protocol::Packet& packet, Descriptors descriptors = {});
  template <typename Payload>
  void say(Client& client, const Payload& payload) {
    deliver(client, protocol::encode(payload));
  }

  void be_honest(size_t index);
  void come(Client& client);
  void answer(Client& client, Received& received);
  void take_lock(Client& client, const protocol::LockOk& lock);
  void leave_turn(Client& client);
  void evict(Client& client, const protocol::Evict& evict);
  void take_segment(Client& client, Received& received);
  void give_back_segment(Client& client);
  protocol::MemoryReport memory_of(const Client& client) const;
  void be_hostile(Client& client);
  void read_all(Client& client);
  // What somebody's segment says of its owner, and what it may not say.
  void mark(const FileDescriptor& memory, int tenant);
  void check_mark(const FileDescriptor& memory, int tenant, const char* when);

  const Options options_;
  const size_t honest_;
  TestLiar liar_;
  std::mt19937_64 time_random_;  // the same with and without liars
  FileDescriptor null_;
  TestFolder folder_{"/dev/shm"};  // files are written at almost every step, and to a disk that takes its time
  std::vector<Process> processes_;
  std::deque<Client> clients_;
  std::vector<std::pair<int, FileDescriptor>> kept_;  // by liars: segments' descriptors, and whose tenant's they were
  std::deque<Job> jobs_;
  std::string found_;  // what was found to be wrong meanwhile
  policy::Instant now_ = kSecond;
  policy::Instant housekept_ = 0;
  ConnectionId rounds_ = 1;
  int64_t messages_ = 0;
  int64_t steps_ = 0;
  int64_t restarts_ = 0;
  uint64_t next_segment_ = 1;
  std::optional<Engine> engine_;
};

}  // namespace nvshare::scheduler
