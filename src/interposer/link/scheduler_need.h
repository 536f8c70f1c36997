// What a program does that finds no scheduler: it runs unshared (a single user's own machine), waits for one, or is refused the GPU. An
// administrator decides, by files that the program cannot change; its own environment can only ask for more than that.
#pragma once

namespace nvshare::interposer {

enum class SchedulerNeed {
  kNone,     // runs unshared
  kWaits,    // until one answers: its limits hold from its first allocation on
  kRefuses,  // CUDA calls fail
};

struct SchedulerNeeded {
  SchedulerNeed need = SchedulerNeed::kNone;
  const char* because = "";  // whose wish that is, for the log; static
};

// /etc/ld.so.preload names this library (in containers, where the device plugin mounts it, or on a machine that an administrator set up
// so); `/etc/nvshare/client.conf` has "require_scheduler = wait" or "= 1"; NVSHARE_REQUIRE_SCHEDULER does. The strictest holds.
SchedulerNeeded scheduler_needed();

// Whoever may write /etc/ld.so.preload wants every program of this system (a container, most likely) shared.
bool preloaded_by_system();

// Pure: what one text asks for; `text` is a file as client.conf. False: it has something that is not understood, and what is understood
// of it holds; a wrong value counts as "wait".
bool read_client_conf(const char* text, SchedulerNeed* need);

}  // namespace nvshare::interposer
