// Objects on their way from memory before they are looked at: those of thousands of clients do not fit the processor's caches, and where
// they are asked for together they come together, not one after the other. Pure, thread-safe, no allocation.
#pragma once

#include <cstddef>

namespace nvshare {

inline constexpr size_t kCacheLine = 64;

// As it lies in memory, without what it points to.
template <typename Object>
inline void fetch_lines_of(const Object& object) {
  const char* const begin = reinterpret_cast<const char*>(&object);
  for (size_t at = 0; at < sizeof(Object); at += kCacheLine) __builtin_prefetch(begin + at);
}

}  // namespace nvshare
