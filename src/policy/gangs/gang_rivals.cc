// Which gangs may come to wait for each other. Two of which that holds both ways never run at the same time.
#include "policy/gangs/gangs.h"

namespace nvshare::policy {
namespace {

// A search for those that a gang could come to wait for, were it to run.
class Rivals {
 public:
  Rivals(const Context& context, const Gang& comes) : context_(context), comes_(comes), number_(++context.state.searches) {}

  std::set<GangId> find() {
    reach_from(comes_);
    if (look_.empty()) return {};
    std::vector<const Gang*> may_wait;  // for it
    for (const Gang::OnGpu& on : comes_.on) {
      if (!has_here(comes_, on)) continue;
      for (const auto& [id, gang] : on.gpu->gangs.lacking) {
        if (gang != &comes_ && may_wait_for(*gang, *on_gpu(*gang, *on.gpu), comes_, on)) may_wait.push_back(gang);
      }
    }
    if (may_wait.empty()) return {};
    while (!look_.empty()) {
      const Gang* from = look_.back();
      look_.pop_back();
      reach_from(*from);
    }
    std::set<GangId> rivals;
    for (const Gang* gang : may_wait) {
      if (gang->reached_by == number_) rivals.insert(gang->id);
    }
    return rivals;
  }

 private:
  // `comes` gets the lock on all GPUs where it waits.
  bool has_or_gets(const Gang& gang, const Client& client) const {
    return has_lock_or_place(client) || (&gang == &comes_ && client.waits());
  }
  bool has_here(const Gang& gang, const Gang::OnGpu& on) const {
    return std::any_of(gang.members.begin() + static_cast<ptrdiff_t>(on.begin), gang.members.begin() + static_cast<ptrdiff_t>(on.end),
                       [&](const Gang::Member& member) { return has_or_gets(gang, *member.is); });
  }
  // Nobody knows yet what one of them will need.
  bool is_forming(const Gang& gang, const Gang::OnGpu& on) const {
    return std::any_of(gang.members.begin() + static_cast<ptrdiff_t>(on.begin), gang.members.begin() + static_cast<ptrdiff_t>(on.end),
                       [&](const Gang::Member& member) {
                         const Client& client = *member.is;
                         return !has_or_gets(gang, client) && !client.wait.asked && context_.now - client.joined.at < kGangForming;
                       });
  }
  // All of both on their GPU.
  bool fit(const Gang& a, const Gang::OnGpu& on_a, const Gang* b, const Gang::OnGpu* on_b) {
    comers_.clear();
    for (size_t i = on_a.begin; i < on_a.end; ++i) comers_.push_back(a.members[i].is);
    for (size_t i = b != nullptr ? on_b->begin : 0; b != nullptr && i < on_b->end; ++i) comers_.push_back(b->members[i].is);
    auto count = counts_.find(on_a.gpu->id);
    if (count == counts_.end()) count = counts_.try_emplace(on_a.gpu->id, context_.state, *on_a.gpu, WhatIf{}, context_.now).first;
    return count->second.room_with(comers_).fits();
  }
  // X lacks the lock on a GPU where Y has it, and not all of both fit there.
  bool may_wait_for(const Gang& x, const Gang::OnGpu& on_x, const Gang& y, const Gang::OnGpu& on_y) {
    return is_forming(x, on_x) || !fit(x, on_x, &y, &on_y);
  }
  void reach(const Gang& gang) {
    if (&gang == &comes_ || std::exchange(gang.reached_by, number_) == number_) return;
    look_.push_back(&gang);
  }
  void reach_from(const Gang& from) {
    for (const Gang::OnGpu& on : from.on) {
      bool lacks = false;
      for (size_t i = on.begin; i < on.end; ++i) lacks = lacks || !has_or_gets(from, *from.members[i].is);
      if (!lacks) continue;
      const GangsHere& here = on.gpu->gangs;
      // What those that are settled have counts already: whether they fit beside it is the same for all of them.
      if (!here.settled.empty() && !all_reached_.contains(on.gpu->id) && (is_forming(from, on) || !fit(from, on, nullptr, nullptr))) {
        all_reached_.insert(on.gpu->id);
        for (const auto& [id, gang] : here.settled) reach(*gang);
      }
      for (const auto& [id, gang] : here.mixed) {
        if (gang->reached_by != number_ && gang != &from && may_wait_for(from, on, *gang, *on_gpu(*gang, *on.gpu))) reach(*gang);
      }
    }
  }

  const Context& context_;
  const Gang& comes_;
  const uint64_t number_;
  std::vector<const Gang*> look_;  // that are reached, and from which nothing was reached yet
  std::set<GpuId> all_reached_;    // that are settled there
  std::map<GpuId, RoomCount> counts_;
  std::vector<const Client*> comers_;
};

}  // namespace

std::set<GangId> rivals_of(const Context& context, const Gang& comes) {
  const bool has_all = std::all_of(comes.members.begin(), comes.members.end(),
                                   [](const Gang::Member& member) { return has_lock_or_place(*member.is) || member.is->waits(); });
  if (has_all) return {};
  list_gangs(context.state);
  return Rivals(context, comes).find();
}

}  // namespace nvshare::policy
