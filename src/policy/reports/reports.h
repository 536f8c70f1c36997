// What clients and people are told of the state, and the log of those that wait. Only steps' end uses it.
#pragma once

#include "policy/memory/room.h"

namespace nvshare::policy {

// Contenders, counted once a step for each GPU and gang. Right as long as no client changes.
class ContentionCounts {
 public:
  explicit ContentionCounts(State& state) : number_(state.next_count++) {}
  const Contenders& on(const Gpu& gpu);
  const Gang::Contention& of(const Gang& gang);

 private:
  const uint64_t number_;
};
// Clients of gangs that may have to hear of contention: on all their GPUs, as what holds for a gang depends on all of these.
void find_gangs_to_tell(Context& context, const Gpus& gpus, ContentionCounts& counts);
void report_contention(Context& context, Gpu& gpu, ContentionCounts& counts);
void report_ceilings(Context& context, Gpu& gpu);
void report_waits(Context& context, Gpu& gpu);
std::optional<std::string> check_gangs(const State& state);  // of check_invariants()
std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client);

}  // namespace nvshare::policy
