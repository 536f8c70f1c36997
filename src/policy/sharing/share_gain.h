// How much more programs get done in turns than together, and how sure that is, from what they did in the pieces of a trial's spells. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "policy/policy.h"

namespace nvshare::policy {

inline constexpr int64_t kGainParts = 10'000;  // of the work done together

using PieceRates = std::map<ClientId, int64_t>;                 // of each client in a piece of a spell
using SpellPieces = std::array<std::vector<PieceRates>, 2>;     // together, and in turns
using SpellRates = std::map<ClientId, std::array<int64_t, 2>>;  // of whole spells

struct ShareGain {
  int64_t ratio = kGainParts;  // of the work in turns
  int64_t variance = 0;        // of that
  int64_t aside = 0;           // the part of that which what was put aside for others' requests brings
  static constexpr int64_t kVague = kGainParts / 20;

  bool is_sure_of(int64_t apart) const { return apart * apart > 4 * variance; }  // about nineteen in twenty
  bool is_vague() const { return aside > kVague * kVague; }                      // it says nothing
};

// `seldom`: requests fall into pieces by chance, so that those who did them count for nothing themselves; what they take from the others is
// told apart by how these fared in pieces with more and with fewer of them.
ShareGain gain_of(const SpellPieces& pieces, const std::map<ClientId, int>& seldom);

// What several trials of the same programs say. One that does not go with those before it begins anew.
class GainPool {
 public:
  void add(const ShareGain& gain);
  void clear() { *this = {}; }
  int64_t ratio() const { return ratio_; }
  int trials() const { return trials_; }

 private:
  int64_t ratio_ = kGainParts;
  int64_t weight_ = 0;  // kWhole / the variance
  int trials_ = 0;
};

}  // namespace nvshare::policy
