// Randomness and size of a test run. NVSHARE_TEST_SEED repeats a run; NVSHARE_TEST_SCALE (1 by default) multiplies counts and times:
// sanitizer builds run at a fraction, and NVSHARE_E2E_SCALE is for these tests alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "repeats.h"

namespace nvshare::e2e {

// A number for this run, printed once.
inline uint64_t seed() {
  static const uint64_t kSeed = [] {
    const char* text = std::getenv("NVSHARE_TEST_SEED");
    uint64_t value = text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 0) : std::random_device()();
    std::cout << "NVSHARE_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return kSeed;
}

// A generator of its own for each use: `purpose` tells them apart.
inline std::mt19937_64 generator(uint64_t purpose) { return std::mt19937_64(seed() * 0x9e3779b97f4a7c15 + purpose); }

inline constexpr double kScaleDefault = repeats(1.0, 0.1);
inline constexpr int kSlowness = kSanitized ? 10 : 1;  // what sanitizers multiply durations by, generously

inline double scale() {
  const char* text = std::getenv("NVSHARE_E2E_SCALE");
  if (text == nullptr || *text == '\0') text = std::getenv("NVSHARE_TEST_SCALE");
  return text != nullptr && *text != '\0' ? std::strtod(text, nullptr) : kScaleDefault;
}

// `full` of something in a full run; at least `least`.
inline int scaled(int full, int least = 1) { return std::max(least, static_cast<int>(full * scale())); }

inline int between(std::mt19937_64& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

}  // namespace nvshare::e2e
