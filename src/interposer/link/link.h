// The link to the scheduler of this process on one GPU: of one client. Owns the socket and the thread that reads it: connects, registers,
// passes on what comes, and sends what others have to tell. What a message means for the turn is Turns' (turns.h). Without a scheduler it
// is *unshared*: gate open, no budget, only the program's own memory limit.
//
// Thread-safe. Its mutex comes after Turns', so that messages go out in the order of the steps that send them; callbacks into DeviceMemory
// and Turns happen without it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/descriptors.h"
#include "base/fd.h"
#include "interposer/own_socket.h"
#include "interposer/sync.h"
#include "protocol/directions.h"

namespace nvshare::interposer {

class Device;

class Link {
 public:
  explicit Link(Device& device) : device_(device) {}

  // Connects, registers, and starts the threads. False: no scheduler; the client stays unshared for good. With a reason to wait it waits
  // until there is one. Once, before any other function.
  bool start(const char* waits_because);
  bool shared() const { return shared_.load(std::memory_order_acquire); }

  // Where a message comes in that may open the gate; -1: nowhere. Any thread; by the time it is looked at the descriptor may be closed, or
  // another file.
  int readable() const { return readable_.load(std::memory_order_relaxed); }
  const WakeSocket& gate_wake() const { return gate_wake_; }

  // A thread has waited for long: asks the scheduler whom it waits for; the answer goes to the log.
  void ask_why_waiting();
  // The program may not use this GPU: the scheduler says so, or a variable's wrong value, and why_barred() says why.
  const char* why_barred() const { return barred_by_; }
  bool barred() const { return barred_.load(std::memory_order_acquire); }

  // The host arena has something to tell the scheduler. Takes no lock.
  void arena_changed();
  // All of its memory stays on the GPU from now on; `why` is a sentence's end, for people. Told to each scheduler.
  void keeps_memory(const char* why);

  // 0 until the scheduler gave one.
  uint64_t id() {
    Lock lock(mutex_);
    return client_id_;
  }
  // False: there is no scheduler now.
  template <typename Payload>
  bool send(const Payload& payload, const Descriptors& descriptors = {}) {
    static_assert(protocol::kIsOneOf<Payload, protocol::ClientMessages>);
    Lock lock(mutex_);
    send_packet(protocol::encode(payload, version_), descriptors);
    return static_cast<bool>(socket_);
  }
  // The scheduler has ended the connection, or itself, and the socket's thread may not have seen it yet.
  bool hung_up();
  // The socket's thread looks at everything again.
  void wake();

  // From Turns, within the section in which it takes in that there is a scheduler, or none any more.
  void open(FileDescriptor socket, const protocol::Registered& terms);
  void send_about();
  void close();

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  static void* thread_body(void* self);
  void run();
  bool find_scheduler(const char* waits_because);
  bool connect_once();  // false: errno says why, EPROTO where the scheduler refused or said what is not understood
  bool have_wakers();
  int own_socket();  // -1: there is none, or the program has closed it
  bool handshake(int fd, const protocol::Register& hello, protocol::Registered* terms);
  protocol::Register registration();
  void disconnected();
  void reconnect();
  void go_on_alone();
  bool receive();
  struct Incoming;  // link_messages.cc
  void handle(protocol::MessageType type, std::span<const std::byte> packet, Descriptors descriptors);
  void count_progress(bool counts);
  void check_cgroup();
  void flush();
  void send_arena();       // what the arena has to tell
  void send_arena_held();  // what it has from an earlier scheduler
  int64_t next_timeout_ns();
  // A failure ends the connection; the socket's thread sees that and reconnects.
  void send_packet(const protocol::Packet& packet, const Descriptors& descriptors) REQUIRES(mutex_);

  Device& device_;
  Mutex mutex_;
  OwnSocket socket_ GUARDED_BY(mutex_);
  WakeSocket wake_;
  WakeSocket gate_wake_;  // Gate::wait_change_or_message
  pthread_t thread_{};

  std::atomic<bool> shared_{false};
  std::atomic<int> readable_{-1};  // the socket, or -1 without one; changed by its thread
  std::atomic<bool> barred_{false};
  std::atomic<bool> arena_dirty_{false};
  std::atomic<bool> why_wanted_{false};  // asked, and not sent yet

  uint16_t version_ GUARDED_BY(mutex_) = protocol::kVersionMax;  // agreed on with this scheduler
  uint64_t client_id_ GUARDED_BY(mutex_) = 0;
  protocol::KeepsMemory keeps_ GUARDED_BY(mutex_){};  // why: empty, or told at each registration
  int64_t asked_why_at_ns_ GUARDED_BY(mutex_) = 0;
  char refusal_told_[256] = {};            // in the log; before the socket's thread starts, then its alone
  const char* barred_by_ = refusal_told_;  // before it is shared
  bool nobody_listens_ = false;            // the last registration found no scheduler
  bool refused_ = false;                   // the last registration: a scheduler does not take this program
  bool broke_off_ = false;                 // the last registration: a scheduler listened, and ended it without an answer; as refusal_told_
  // The socket's thread's:
  bool counts_progress_ = false;  // for the scheduler, who asked
  uint64_t question_ = 0;
  int64_t reconnect_at_ns_ = 0;
  int64_t reconnect_backoff_ns_ = 0;
  int64_t cgroup_look_ns_ = 0;  // when next
};

}  // namespace nvshare::interposer
