// Amounts and times as notes for the log have them, and how often a note is due. Notes stand in the folder that they are about; nothing of
// a decision depends on them.
#pragma once

#include <cstdlib>
#include <string>

#include "policy/state.h"

namespace nvshare::policy {

inline std::string ms(Duration time) {
  const Duration tenths = time / (kMillisecond / 10);
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(std::abs(tenths % 10)) : "") + " ms";
}

inline std::string seconds(Duration time) {
  const Duration tenths = (time + kSecond / 20) / (kSecond / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

inline std::string percent(int64_t millionths) {
  const int64_t tenths = (millionths + 500) / 1000;
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(tenths % 10) : "") + " %";
}

// What happens many times a second has a line in kNotePause, which counts the others.
inline bool is_note_due(Instant noted_at, Instant now) { return noted_at == 0 || now - noted_at >= kNotePause; }

}  // namespace nvshare::policy
