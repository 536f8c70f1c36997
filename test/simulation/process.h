// A program: its threads, which submit GPU work, pause, allocate and free as its plan says, and the gate that they share. Everything that
// it does stands still while it is stopped, and ends when it dies. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client.h"
#include "node.h"

namespace nvshare::simulation {

class Run;

class Process {
 public:
  Process(Run& run, const ProgramPlan& plan);
  ~Process();

  void start();
  void kill();
  void stop(Duration lasts);
  void cut();
  void release(Bytes bytes);  // as a thread would, on each of its GPUs
  void hang(Duration lasts);  // what it has on the GPUs ends so much later
  void driver_short(Duration lasts);
  // Its child keeps the driver's files open for so long; `holds`: and its connections.
  void fork(Duration lasts, bool holds);

  const ProgramPlan& plan() const { return plan_; }
  bool alive() const { return alive_; }
  bool ended() const { return ended_; }
  bool has_context() const { return has_context_; }
  bool has_pid() const { return alive_ || !is_gone_; }  // false: only children keep what it has on the GPUs
  uint64_t gone_in() const { return gone_in_; }         // of the schedulers that there have been, the last
  bool stopped() const { return stopped_; }
  Instant answers_since() const { return answers_since_; }  // it was stopped until then, or another scheduler's; 0: never
  void answers_anew();
  pid_t pid() const { return pid_; }
  std::vector<std::unique_ptr<Client>>& clients() { return clients_; }
  std::string describe() const;

  // ---- for its clients ----
  Run& run() { return run_; }
  Random& random() { return random_; }
  void later(Duration delay, std::function<void()> what);
  Duration wake_time();  // that a thread takes to wake
  void close_gate(size_t gpu) { closed_ |= 1U << gpu; }
  void open_gate(size_t gpu);  // threads that wait there look
  void wake_gate();
  bool gate_closed() const { return closed_ != 0; }
  bool gate_closed(size_t gpu) const { return (closed_ & (1U << gpu)) != 0; }
  uint32_t waiting() const { return waiting_; }
  uint64_t submissions() const { return submissions_; }
  uint64_t entries() const { return entries_; }  // how often a thread came to the gate
  Instant waited_at() const { return waited_at_; }
  uint64_t waited_after() const { return waited_after_; }
  bool capturing() const { return capturing_ > 0; }
  void hold_captures(bool off) { synchronizing_ += off ? 1 : -1; }  // while the swap engine waits for the GPU
  Duration longest_kernel() const { return longest_; }
  bool holds_other_gpu(const Client& client) const;
  // When the GPU work that was submitted ends; kNever: something has to be submitted first.
  Instant work_ends(const Client* only) const;
  Instant work_ended(size_t gpu) const { return work_[gpu].ends; }  // the last of it, by then
  void client_changed();                                            // threads that wait for memory look

 private:
  struct Thread {
    size_t number = 0;
    std::deque<Step> steps;
    enum class State : uint8_t { kFree, kAtGate, kGrowing, kCharging, kSettling, kMeeting, kDone } state = State::kFree;
    Bytes allocates = 0;
    Instant short_since = 0;  // the driver has no memory for it
    bool charged = false;
    bool asked = false;  // its growth or headroom is the client's one question
    size_t met = 0;      // of a collective: GPUs that have their part
    bool captures = false;
    Instant ends = 0;    // the last that it submitted
    bool woken = false;  // a look is on its way
    std::vector<size_t> waited_for;
  };
  struct Work {
    Instant ends = 0;
    bool linked = false;  // ends only once the next is submitted
    Duration linked_for = 0;
  };

  void go_on(Thread& thread);
  void look(Thread& thread);  // of one that waits
  void wake(Thread& thread);
  bool pass_gate(Thread& thread);
  void leave_gate(Thread& thread);
  void run_step(Thread& thread, Step& step);
  void meet(Thread& thread, Step& step);
  void wait_for_work(Thread& thread);
  void capture(Thread& thread, Step& step);
  void reset(Thread& thread, Step& step);
  void submit(Client& client, Duration kernel, bool linked);
  void allocate(Thread& thread, Step& step);
  bool charge(Thread& thread, Client& client);
  void grow(Thread& thread, Client& client);
  void allocated(Thread& thread);
  void driver_has_none(Thread& thread, Client& client);
  void refuse(Thread& thread, Client& client);
  void step_done(Thread& thread, Duration then);
  void exit_if_done();
  void end(bool killed);

  Run& run_;
  const ProgramPlan& plan_;
  Random random_;
  pid_t pid_ = 0;
  Instant answers_since_ = 0;
  bool alive_ = false, ended_ = false, has_context_ = false, stopped_ = false, is_gone_ = false;
  Instant children_end_ = 0;
  uint64_t gone_in_ = 0;
  std::deque<std::function<void()>> deferred_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Work> work_;  // of each GPU
  std::deque<Thread> threads_;
  uint32_t closed_ = 0;
  uint32_t waiting_ = 0;
  uint64_t submissions_ = 0;
  Duration longest_ = 0;
  uint64_t entries_ = 0, waited_after_ = 0;
  Instant waited_at_ = 0;
  int capturing_ = 0, synchronizing_ = 0;
};

}  // namespace nvshare::simulation
