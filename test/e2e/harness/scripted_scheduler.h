// A scheduler that does what a test says: grants the lock to one program whenever it asks, tells it of a compute limit, and takes the lock
// back every so often. For what a program's side does by itself, whatever a policy may do with it. Listens in the stage's runtime folder.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "e2e/harness/child.h"
#include "protocol/codec.h"

namespace nvshare::e2e {

class ScriptedScheduler {
 public:
  struct Script {
    bool limited = false;
    uint32_t idle_release_us = 0;
    uint32_t pause_us = 0;
    Duration drop_every{};   // after a grant; 0: never
    Duration drop_spread{};  // and so much later at most, another time after each grant
    bool contended = false;  // others wait for the GPU, and take its memory each time: it hears so while its memory still comes in
    // After the first turn, which `drop_every` ends and no other: others take its memory each time, and wait for it again as soon as it is
    // back; it hears so while its memory still comes in.
    bool waiters = false;
    // After a turn that drop() ended, others take its memory and give back this much; the rest of what it then says that it has allocated,
    // once that is less than it was.
    uint64_t piecemeal_bytes = 0;
    uint64_t left_bytes = 0;     // of its memory that others do not take
    int gone_with_grant = 0;     // it ends as soon as it has given the lock so often; 0: never
    bool tells_if_held = false;  // it says that nobody is held: without it programs go on if they can
    bool tells_end = false;      // it asks to be told ahead of the end of the work
    int grants_most = 0;         // so often it gives the lock, and then no more; 0: always
  };
  struct Pause {
    int64_t used_ns;     // as the program says
    int64_t lasted_ns;   // until it said that it goes on, or gave the lock up
    bool ended_by_drop;  // so that it gave it up
  };
  struct Release {
    protocol::ReleaseReason reason;
    int64_t held_ns;   // since the grant
    int64_t drain_ns;  // since it was asked to drop; 0: it was not
    int64_t used_ns;   // as the program says
    int64_t idle_ns;   // the same: for how long it had done nothing
  };

  ScriptedScheduler(const std::string& runtime_directory, Script script);
  ~ScriptedScheduler();
  ScriptedScheduler(const ScriptedScheduler&) = delete;
  ScriptedScheduler& operator=(const ScriptedScheduler&) = delete;

  void drop() { drop_asked_ = true; }  // the lock, now
  // Others want the GPU and its memory from now on, until it gives the lock up; to move that takes so long.
  void contend(int64_t swap_cost_ns) { contend_cost_ns_ = swap_cost_ns; }

  std::vector<Release> releases();
  std::vector<Release> releases(protocol::ReleaseReason reason);
  std::vector<Pause> pauses();                           // that have ended
  int told_ahead() const { return told_ahead_.load(); }  // of drops, before the release
  int grants() const { return grants_.load(); }
  bool came_with_lock() const { return came_with_lock_.load(); }  // the program that is there now, from an earlier scheduler
  std::string problem();                                          // a message that does not belong; empty: none

 private:
  void run();
  void serve(int fd);
  void handle(int fd, std::span<const std::byte> packet);
  void give_lock(int fd);
  void handle_pause(protocol::MessageType type, std::span<const std::byte> packet);
  void end_pause(bool by_drop);
  void complain(const std::string& text);
  template <typename Payload>
  void send(int fd, const Payload& payload);

  Script script_;
  FileDescriptor listener_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> drop_asked_{false};
  std::atomic<int64_t> contend_cost_ns_{0};  // 0: nobody wants it
  std::atomic<int> told_ahead_{0};
  std::atomic<int> grants_{0};
  std::atomic<bool> came_with_lock_{false};
  uint64_t budget_sequence_ = 0;
  uint64_t allocated_ = 0;            // when it gave the lock up, or as last answered with a budget
  uint64_t segments_ = 0, lent_ = 0;  // of host memory
  bool granted_ = false;
  bool dropping_ = false;
  int64_t dropped_at_ns_ = 0;
  bool paused_ = false;
  int64_t granted_at_ns_ = 0, paused_at_ns_ = 0, paused_used_ns_ = 0;
  std::mutex mutex_;
  std::vector<Release> releases_;
  std::vector<Pause> pauses_;
  std::string problem_;
};

}  // namespace nvshare::e2e
