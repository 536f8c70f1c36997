// The scheduling modes, a row each: how tenants share a GPU on which one of them has a compute limit. The policy asks what a mode's row
// says and never which mode it is; the setting, traces, logs, tests and documents have names and words from here.
#pragma once

#include <cstdint>
#include <string_view>

namespace nvshare::policy {

struct SchedulingMode {
  // Which tenants run one after the other; all others run together.
  enum class InTurns { kNone, kAll, kSaturating, kAllWhereCeilingsPass100 };
  // What each of n tenants that run at the same time pays for it.
  enum class Bills { kItsPart, kAllOfIt };
  // What a turn is its tenant's share of, unless it has a length of its own.
  enum class TurnsOf { kPeriod, kWindow };

  std::string_view name;  // as the setting has it: lower-case letters and '-'
  InTurns in_turns;
  Bills bills = Bills::kItsPart;
  bool scales = true;  // tenants are held to their shares; false: each to its own ceiling, whatever these add up to
  TurnsOf turns_of = TurnsOf::kPeriod;
  int64_t slice_ms = 0;      // the length of all turns, while scheduling_slice_ms sets none; 0: by `turns_of`
  std::string_view summary;  // who runs when, for documents

  bool operator==(const SchedulingMode&) const = default;
};

// The first is the default. A new one comes last: seeds of random tests draw by number.
inline constexpr SchedulingMode kSchedulingModes[] = {
    {.name = "auto",
     .in_turns = SchedulingMode::InTurns::kSaturating,
     .summary = "in turns those that keep the GPU busy, together those that leave gaps"},
    {.name = "weighted",
     .in_turns = SchedulingMode::InTurns::kNone,
     .summary = "together; what the driver's time-slicing loses is lost to all"},
    {.name = "serial",
     .in_turns = SchedulingMode::InTurns::kAllWhereCeilingsPass100,
     .turns_of = SchedulingMode::TurnsOf::kWindow,
     .summary = "together while the ceilings add up to 100 at most, else one after the other, each for its whole share of a window"},
    {.name = "dynamic",
     .in_turns = SchedulingMode::InTurns::kAllWhereCeilingsPass100,
     .bills = SchedulingMode::Bills::kAllOfIt,
     .turns_of = SchedulingMode::TurnsOf::kWindow,
     .summary = "together while the ceilings add up to 100 at most, else one after the other, each for its whole share of a window"},
    {.name = "round-robin",
     .in_turns = SchedulingMode::InTurns::kAll,
     .slice_ms = 100,
     .summary = "one after the other, in slices of 100 ms"},
    {.name = "concurrent",
     .in_turns = SchedulingMode::InTurns::kNone,
     .bills = SchedulingMode::Bills::kAllOfIt,
     .scales = false,
     .summary = "together; each is held to its own ceiling"},
};

// Null: there is none of that name.
constexpr const SchedulingMode* find_mode(std::string_view name) {
  for (const SchedulingMode& mode : kSchedulingModes) {
    if (mode.name == name) return &mode;
  }
  return nullptr;
}

// For tests: a name that there is not does not compile.
consteval const SchedulingMode& mode_named(std::string_view name) { return *find_mode(name); }

}  // namespace nvshare::policy
