// What clients, the log and people are told: a block for each file.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

struct Switch;  // turns/turns.h

// notes.cc: what the log says of routine decisions. What happens many times a second has a line in kNotePause, which counts the others.
void note_throttled(Context& context, const Gpu& gpu, Account& account);
void note_released(Context& context, const Gpu& gpu, Account& account);
void note_limit(Context& context, const Gpu& gpu, const Account& account, const CoreLimit& former);  // after it changed
void note_scale(Context& context, Gpu& gpu);                                                         // of the active tenants' reservations
void note_window(Context& context, Gpu& gpu, Duration length);  // before a window of that length is forgotten
void note_mode(Context& context, const Gpu& gpu, GpuMode former);
void note_switch_time(Context& context, Gpu& gpu, const Switch& plan);
void note_grant(Context& context, const Gpu& gpu, Client& client);
void note_wait(Context& context, const Gpu& gpu, Client& client);

// reports.cc: what clients and people are told
// Contenders, counted once a step for each GPU and gang. Right as long as no client changes.
class ContentionCounts {
 public:
  explicit ContentionCounts(State& state) : number_(state.next_count++) {}
  const Contenders& on(const Gpu& gpu);
  const Gang::Contention& of(const Gang& gang);

 private:
  const uint64_t number_;
  std::map<GpuId, Contenders> on_gpus_;
};
void report_contention(Context& context, Gpu& gpu, ContentionCounts& counts);
void report_ceilings(Context& context, Gpu& gpu);
void report_waits(Context& context, Gpu& gpu);
std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client);

// view.cc
const char* name_of(GpuMode mode);

}  // namespace nvshare::policy
