#include "scheduler/trace_ring.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "policy/overloaded.h"
#include "policy/parts.h"

namespace nvshare::scheduler {
namespace {

bool is_same(const policy::ClientGlimpse& a, const policy::ClientGlimpse& b) {
  const auto near = [](policy::Bytes x, policy::Bytes y) { return std::abs(x - y) < TraceRing::kMemoryStep; };
  return a.state == b.state && a.in_turn == b.in_turn && a.turns == b.turns && a.swapped_out_total == b.swapped_out_total &&
         a.swapped_in_total == b.swapped_in_total && a.held == b.held && near(a.memory.resident, b.memory.resident) &&
         near(a.memory.allocated, b.memory.allocated);
}

}  // namespace

size_t TraceRing::bytes_of(const Entry& entry) {
  size_t text = 0;
  if (const auto* names = std::get_if<TraceNames>(&entry.what))
    text = names->program.size() + names->tenant_name.size() + names->gpu.size();
  if (const auto* sighting = std::get_if<TraceSighting>(&entry.what)) text = sighting->waiting_for.size();
  return sizeof entry + text;
}

std::string TraceRing::line_of(const Entry& entry) {
  const auto event = [&](const policy::Event& happened) { return encode_trace(TraceEvent{entry.now, happened}); };
  return std::visit(policy::Overloaded{[](const TraceNames& names) { return encode_trace(names); },
                                       [](const TraceSighting& sighting) { return encode_trace(sighting); }, event},
                    entry.what);
}

void TraceRing::fold(const Entry& entry, Clients& clients) {
  if (const auto* names = std::get_if<TraceNames>(&entry.what)) clients[names->client].names = *names;
  if (const auto* sighting = std::get_if<TraceSighting>(&entry.what)) clients[sighting->seen.client].sighting = *sighting;
  if (const auto* left = std::get_if<policy::ClientLeft>(&entry.what)) clients.erase(left->client);
}

void TraceRing::push(Entry entry) {
  bytes_ += bytes_of(entry);
  entries_.push_back(std::move(entry));
  const policy::Instant oldest = entries_.back().now - kLength;
  while (bytes_ > kBytesMost || entries_.front().now < oldest) {
    bytes_ -= bytes_of(entries_.front());
    fold(entries_.front(), before_);
    begin_ = entries_.front().now;
    entries_.pop_front();
    ++first_;
  }
}

void TraceRing::name(TraceNames names, policy::Instant now) { push({now, std::move(names)}); }

void TraceRing::happened(const policy::State& state, const policy::Event& event, policy::Instant now) {
  see(state, now);
  if (const auto* left = std::get_if<policy::ClientLeft>(&event)) {
    known_.erase(left->client);
    push({now, *left});
  }
  if (const auto* moved = std::get_if<policy::SwapProgressed>(&event)) push({now, *moved});
}

void TraceRing::see(const policy::State& state, policy::Instant now) {
  policy::glimpse_touched(state, now_);
  for (const policy::ClientGlimpse& seen : now_) {
    const auto [before, is_new] = known_.try_emplace(seen.client, seen);
    if (!is_new && is_same(before->second, seen)) continue;
    before->second = seen;
    const bool waits = seen.state == policy::ClientState::kWaiting || seen.held;
    push({now, TraceSighting{now, seen, waits ? policy::waiting_for(state, seen.client) : std::string()}});
  }
}

TraceRing::Copied TraceRing::copy(uint64_t after, policy::Duration last, policy::Instant now) const {
  Copied copied;
  copied.now = now;
  size_t at = 0;
  if (after >= first_ && after <= first_ + entries_.size()) {
    at = static_cast<size_t>(after - first_);
  } else {
    copied.begins = true;
    copied.clients = before_;
    copied.begin = begin_;
    for (; last > 0 && at < entries_.size() && entries_[at].now < now - last; ++at) fold(entries_[at], copied.clients);
    if (last > 0 && at > 0) copied.begin = now - last;
  }
  // Of a beginning less, by what its clients take.
  const size_t lines = copied.begins ? 1 + 2 * copied.clients.size() : 0;
  const size_t end = std::min(entries_.size(), at + (lines < kLinesMost ? kLinesMost - lines : 0));
  copied.entries.assign(entries_.begin() + static_cast<std::ptrdiff_t>(at), entries_.begin() + static_cast<std::ptrdiff_t>(end));
  copied.next = first_ + end;
  copied.more = end < entries_.size();
  return copied;
}

TraceRing::Part TraceRing::written(const Copied& copied) {
  Part part;
  if (copied.begins) part.lines.push_back(encode_trace(TraceStart{NVSHARE_VERSION, std::nullopt}));
  for (const auto& [client, known] : copied.clients) {
    part.lines.push_back(encode_trace(known.names));
    if (known.sighting.seen.client == 0) continue;
    part.lines.push_back(encode_trace(TraceSighting{copied.begin, known.sighting.seen, known.sighting.waiting_for}));
  }
  for (const Entry& entry : copied.entries) part.lines.push_back(line_of(entry));
  part.next = copied.next;
  part.more = copied.more;
  if (!part.more) part.lines.push_back(encode_trace(TraceEvent{copied.now, policy::Tick{}}));  // what goes on went on until now
  return part;
}

}  // namespace nvshare::scheduler
