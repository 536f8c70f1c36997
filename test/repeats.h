// How often a test repeats something with other numbers: seeds, moments, mixes. A sanitizer looks at memory and threads: what it has seen
// a few times it does not see otherwise in the hundredth, and each takes 5 to 15 times as long under it. Tests of the full count are those
// of the release build, of the same code. (End-to-end tests: e2e/harness/random.h, scale().)
#pragma once

#include <type_traits>

namespace nvshare {

#ifdef NVSHARE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

template <typename Number>
constexpr Number repeats(Number full, std::type_identity_t<Number> sanitized) {
  return kSanitized ? sanitized : full;
}

}  // namespace nvshare
