// Programs as the scheduler sees them: they register, ask for the lock, load their memory, change it, give the lock up, move memory out
// when asked, end, and others begin. A process may use several GPUs, and is a client on each. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "load/crowd.h"
#include "protocol/codec.h"

namespace nvshare::bench {

enum class Shape { kRunning, kWaiting };  // all fit; on each GPU one runs, and all others wait

struct Plan {
  Shape shape = Shape::kRunning;
  size_t clients = 1000;
  size_t processes = 0;  // that these are of; 0: as many
  size_t gpus = 1;
  double messages_per_second = 1000;
  uint64_t seed = 1;
};

struct Figures {
  int64_t since_ns = 0;           // of requests since then:
  std::vector<double> grants_ms;  // from the request to the grant
  uint64_t grants_of_before = 0;  // of earlier requests
  uint64_t sent = 0;
  uint64_t received = 0;
  std::map<uint16_t, uint64_t> received_by_type;  // protocol::MessageType
  uint64_t joined = 0;
  uint64_t lost = 0;  // connections that the scheduler closed
};

class Workload {
 public:
  Workload(Crowd& crowd, const Plan& plan);
  ~Workload();
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  // Until all are registered, or the time is over. How many are.
  size_t register_all(int64_t until_ns);
  void request_all();
  // The mix, at the plan's rate.
  void run(int64_t until_ns);
  // Answers what the scheduler sends, and says nothing else.
  void listen(int64_t until_ns);

  // The tenant that is to have another priority next; 0: none.
  uint64_t tenant_to_change();
  size_t registered() const { return registered_; }
  Figures& figures() { return figures_; }

 private:
  // A client.
  struct Program {
    FileDescriptor socket;
    uint32_t gpu = 0;
    uint64_t tenant = 0;
    uint64_t epoch = 0;
    uint64_t grant = 0;
    uint64_t budget = 0, budget_sequence = 0;
    protocol::MemoryReport memory{};
    bool registered = false;
    bool waits = false;
    bool moved = false;  // its first turn is over: a grant may cost a movement
    int64_t asked_at = 0;
  };

  struct Process {
    size_t first = 0, end = 0;  // of the programs: its clients
    size_t place = 0;           // in the crowd
  };

  uint64_t random();
  bool enter(size_t process);
  void register_connected();
  void register_one(size_t index);
  void leave(size_t process);
  size_t process_of(size_t index) const;
  void act();
  void change_memory(Program& program);
  void request(Program& program);
  void release(Program& program, protocol::ReleaseReason reason);
  void load(Program& program);
  void make_room(Program& program);
  void evict(Program& program, const protocol::Evict& message);
  void take(size_t index, const protocol::Packet& packet);
  bool read(size_t index);
  void poll_once(int64_t timeout_ns);
  template <typename Payload>
  void send(Program& program, const Payload& payload);

  Crowd& crowd_;
  const Plan plan_;
  const uint64_t need_;
  const uint64_t gpu_total_;
  std::vector<Program> programs_;
  std::vector<Process> processes_;  // in the order of their clients
  std::vector<size_t> connecting_;  // of the processes
  size_t registered_ = 0;
  int epoll_ = -1;
  uint64_t seed_;
  uint64_t request_ = 0;
  size_t next_limit_ = 0;
  Figures figures_;
};

}  // namespace nvshare::bench
