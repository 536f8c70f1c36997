#include "cli/top/past.h"

#include <algorithm>
#include <variant>

namespace nvshare::cli::top {
namespace {

// As the scheduler counts a tenant's running_ns and swapping_ns.
bool runs(policy::ClientState state) {
  return state == policy::ClientState::kRunning || state == policy::ClientState::kDropping || state == policy::ClientState::kUnresponsive;
}
bool swaps(policy::ClientState state) { return state == policy::ClientState::kLoading; }

constexpr double kNsPerS = 1e9;

}  // namespace

void Past::see(policy::Instant now) {
  if (first_ < 0) first_ = now;
  last_ = std::max(last_, now);
}

void Past::close(policy::ClientId client, policy::Instant now) {
  const auto at = open_.find(client);
  if (at == open_.end()) return;
  at->second.end = now;
  if (runs(at->second.state) || swaps(at->second.state)) done_.push_back(at->second);
  open_.erase(at);
}

Result<void> Past::add(std::string_view line) {
  const auto decoded = scheduler::decode_trace(line);
  if (!decoded) return decoded.error();
  if (const auto* names = std::get_if<scheduler::TraceNames>(&*decoded)) {
    gpu_of_[names->client] = names->gpu;
  } else if (const auto* sighting = std::get_if<scheduler::TraceSighting>(&*decoded)) {
    see(sighting->now);
    close(sighting->seen.client, sighting->now);
    open_[sighting->seen.client] = {sighting->seen.client, sighting->seen.tenant, sighting->seen.state, sighting->now, 0};
  } else if (const auto* event = std::get_if<scheduler::TraceEvent>(&*decoded)) {
    see(event->now);
    if (const auto* left = std::get_if<policy::ClientLeft>(&event->event)) close(left->client, event->now);
  }
  return {};
}

std::vector<Cell> Past::cells_of(const std::string& uuid, double cell_s) const {
  const double known_s = first_ < 0 ? 0 : static_cast<double>(last_ - first_) / kNsPerS;
  std::vector<Cell> cells(static_cast<size_t>(known_s / cell_s));
  const double begin_s = known_s - static_cast<double>(cells.size()) * cell_s;  // after the first line
  const auto fill = [&](const Span& span, policy::Instant end) {
    const auto gpu = gpu_of_.find(span.client);
    if (gpu == gpu_of_.end() || !gpu->second.ends_with(uuid)) return;
    const double from_s = std::max(static_cast<double>(span.begin - first_) / kNsPerS - begin_s, 0.0);
    const double to_s = static_cast<double>(end - first_) / kNsPerS - begin_s;
    for (auto i = static_cast<size_t>(from_s / cell_s); i < cells.size() && static_cast<double>(i) * cell_s < to_s; ++i) {
      const double cell_begin_s = static_cast<double>(i) * cell_s;
      const double part_s = std::min(to_s, cell_begin_s + cell_s) - std::max(from_s, cell_begin_s);
      if (part_s <= 0) continue;
      if (runs(span.state)) cells[i].ran_s[span.tenant] += part_s;
      if (swaps(span.state)) cells[i].swapping_s += part_s;
    }
  };
  for (const Span& span : done_) fill(span, span.end);
  for (const auto& [client, span] : open_) fill(span, last_);
  return cells;
}

}  // namespace nvshare::cli::top
