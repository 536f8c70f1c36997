// Names of trust groups: of one user's programs, those that name the same group share one MPS daemon. Pure, no allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace nvshare::protocol {

inline constexpr size_t kTrustGroupMost = 32;
inline constexpr char kTrustGroupForm[] =
    "1 to 32 letters (a to z, A to Z), digits, '-' and '_', of which the first is a letter or a digit";
inline constexpr char kTrustGroupVariable[] = "NVSHARE_TRUST_GROUP";

// It becomes a part of paths: nothing that means something there, and no dot.
constexpr bool is_trust_group(std::string_view name) {
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= kTrustGroupMost && is_word(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_word(c) || c == '-' || c == '_'; });
}

}  // namespace nvshare::protocol
