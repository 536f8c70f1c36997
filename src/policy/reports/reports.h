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
  std::map<GpuId, Contenders> on_gpus_;
};
void report_contention(Context& context, Gpu& gpu, ContentionCounts& counts);
void report_ceilings(Context& context, Gpu& gpu);
void report_waits(Context& context, Gpu& gpu);
std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client);

}  // namespace nvshare::policy
