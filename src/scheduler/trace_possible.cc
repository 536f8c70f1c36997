#include "scheduler/trace_possible.h"

#include <cstdlib>

namespace nvshare::scheduler {
namespace {

constexpr policy::Bytes kTracedBytesMax = policy::Bytes{1} << 55;  // 32 PiB
constexpr policy::Instant kInstantMax = policy::Instant{1} << 60;  // 36 years since the machine started
constexpr int64_t kMultiplierMax = 1000;
constexpr int kPriorityMax = 1'000'000;

// Each remembers the first figure that cannot be.
class Figures {
 public:
  void amount(const char* name, policy::Bytes bytes) { refuse_unless(bytes >= 0 && bytes <= kTracedBytesMax, name, bytes); }
  // What may be without a bound.
  void bound(const char* name, policy::Bytes bytes) { refuse_unless(bytes >= 0, name, bytes); }
  void length(const char* name, policy::Duration duration) {
    refuse_unless(duration >= 0 && duration <= kTraceDurationMax, name, duration);
  }
  void balance(const char* name, policy::Duration duration) {
    refuse_unless(duration >= -kTraceDurationMax && duration <= kTraceDurationMax, name, duration);
  }
  void change(const char* name, policy::Bytes by) { refuse_unless(by >= -kTracedBytesMax && by <= kTracedBytesMax, name, by); }
  void point(const char* name, policy::Instant at) { refuse_unless(at >= 0 && at <= kInstantMax, name, at); }
  void percent(const char* name, int64_t value, int64_t least = 0) { refuse_unless(value >= least && value <= 100, name, value); }
  void priority(int64_t value) { refuse_unless(value >= -kPriorityMax && value <= kPriorityMax, "priority", value); }
  void memory(const policy::Memory& memory) {
    amount("allocated", memory.allocated);
    amount("resident", memory.resident);
    amount("unswappable", memory.unswappable);
  }
  void config(const policy::Config& config) {
    amount("reserve_fixed", config.reserve_fixed);
    amount("overhead_default", config.overhead_default);
    length("departed_grace", config.departed_grace);
    length("watched_grace", config.watched_grace);
    length("unanswered_grace", config.unanswered_grace);
    length("switch_time_fixed", config.switch_time_fixed);
    length("switch_time_min", config.switch_time_min);
    length("switch_time_max", config.switch_time_max);
    length("compute_window", config.compute_window);
    length("quota_sample_interval", config.quota_sample_interval);
    length("scheduling_slice", config.scheduling_slice);
    length("latency_target", config.latency_target);
    refuse_unless(config.switch_time_multiplier >= 0 && config.switch_time_multiplier <= kMultiplierMax, "switch_time_multiplier",
                  config.switch_time_multiplier);
    percent("memory_reserve_percent", config.memory_reserve_percent.value_or(0));
    percent("quota_carryover_percent", config.quota_carryover_percent.value_or(0));
    percent("drop_tail_billing_percent", config.drop_tail_billing_percent.value_or(0));
  }
  // That began before the machine did where the scheduler before kept it.
  void account(const policy::AccountKept& kept, policy::Instant now) {
    balance("debt", kept.debt);
    length("used", kept.used);
    length("throttled_time", kept.throttled_time);
    const bool possible = kept.joined_at >= -kInstantMax && kept.joined_at <= kInstantMax;
    refuse_unless(possible && now >= 0 && now <= kInstantMax && std::abs(now - kept.joined_at) <= kTraceDurationMax, "joined_at",
                  kept.joined_at);
  }
  Result<void> result() const {
    if (name_ == nullptr) return {};
    return error_format("'%s' cannot be %lld", name_, static_cast<long long>(value_));
  }

 private:
  void refuse_unless(bool possible, const char* name, int64_t value) {
    if (possible || name_ != nullptr) return;
    name_ = name;
    value_ = value;
  }

  const char* name_ = nullptr;
  int64_t value_ = 0;
};

// By the members' names, so that an event that is new is looked at, too. What a client says that the policy itself believes only as far as
// it is possible (`used`, `elapsed`, sums of bytes that saturate) may be anything here, too: a liar is to spoil no recording.
template <typename Event>
void look_at(const Event& of, Figures& figures) {
  if constexpr (requires { of.memory; }) figures.memory(of.memory);
  if constexpr (requires { of.bytes; }) figures.amount("bytes", of.bytes);
  if constexpr (requires { of.total; }) figures.amount("total", of.total);
  if constexpr (requires { of.wanted; }) figures.bound("wanted", of.wanted);
  if constexpr (requires { of.budget; }) figures.bound("budget", of.budget);
  if constexpr (requires { of.copied; }) figures.bound("copied", of.copied);
  if constexpr (requires { of.unmoved; }) figures.bound("unmoved", of.unmoved);
  if constexpr (requires { of.idle; }) figures.length("idle", of.idle);
  if constexpr (requires { of.most; }) figures.length("most", of.most);
  if constexpr (requires { of.priority; }) figures.priority(of.priority);
  if constexpr (requires { of.overhead; }) figures.amount("overhead", of.overhead.value_or(0));
  if constexpr (requires { of.config; }) figures.config(of.config);
}

void look_at(const policy::SwapProgressed& of, Figures& figures) {
  look_at<policy::SwapProgressed>(of, figures);
  figures.change("host_more", of.host_more.value_or(0));
}

void look_at(const policy::HostMemory& of, Figures& figures) {
  figures.amount("available", of.available);
  figures.amount("free", of.free);
  figures.amount("kept", of.kept);
  figures.amount("share", of.share);
  for (const policy::HostMemory::Use& use : of.uses) figures.amount("used", use.used);
}

void look_at(const policy::ComputeLimit& of, Figures& figures) {
  figures.percent("ceiling", of.ceiling, 1);
  figures.percent("reserved", of.reserved);
}

}  // namespace

Result<void> check_possible(const TraceLine& line) {
  Figures figures;
  if (const auto* traced = std::get_if<TraceEvent>(&line)) {
    figures.point("now", traced->now);
    std::visit([&figures](const auto& event) { look_at(event, figures); }, traced->event);
    if (const auto* kept = std::get_if<policy::AccountKept>(&traced->event)) figures.account(*kept, traced->now);
  } else if (const auto* start = std::get_if<TraceStart>(&line)) {
    if (start->config) figures.config(*start->config);
  } else if (const auto* sighting = std::get_if<TraceSighting>(&line)) {
    figures.point("now", sighting->now);
    figures.memory(sighting->seen.memory);
    figures.bound("swapped_out_total", sighting->seen.swapped_out_total);
    figures.bound("swapped_in_total", sighting->seen.swapped_in_total);
  }
  return figures.result();
}

}  // namespace nvshare::scheduler
