#include "policy/sharing/share_gain.h"

#include <algorithm>

namespace nvshare::policy {
namespace {

constexpr int64_t kErrorLeast = kGainParts / 100;  // what is submitted is done up to 10 ms later
constexpr int64_t kErrorMost = kGainParts;
constexpr int64_t kRateMost = 1'000'000'000'000;  // more than any program submits
constexpr int64_t kRatioMost = 10 * kGainParts;
constexpr int64_t kSquaresMost = 10'000'000'000;
constexpr int64_t kWhole = 1'000'000'000'000;  // of weights
constexpr int64_t kOther = 3;                  // so many errors away: not the same programs' work any more

struct Piece {
  int64_t work = 0;    // in parts of the mean of each client that counts
  int64_t others = 0;  // the same of the requests of others
};
using Pieces = std::vector<Piece>;

// The sum of each client's means of both ways: whatever it says, it weighs as much as any other.
PieceRates means_of(const SpellPieces& spells) {
  PieceRates sums;
  for (const std::vector<PieceRates>& spell : spells) {
    PieceRates of_spell;
    for (const PieceRates& piece : spell)
      for (const auto& [id, rate] : piece) of_spell[id] += std::clamp<int64_t>(rate, 0, kRateMost);
    for (const auto& [id, sum] : of_spell) sums[id] += sum / std::ssize(spell);
  }
  return sums;
}

Pieces pieces_of(const std::vector<PieceRates>& spell, const PieceRates& means, const std::map<ClientId, int>& seldom) {
  Pieces pieces;
  for (const PieceRates& each : spell) {
    Piece& piece = pieces.emplace_back();
    for (const auto& [id, rate] : each) {
      const int64_t mean = means.at(id);
      if (mean > 0) (seldom.contains(id) ? piece.others : piece.work) += std::clamp<int64_t>(rate, 0, kRateMost) * 2 * kGainParts / mean;
    }
  }
  return pieces;
}

Piece mean_of(const Pieces& pieces) {
  Piece mean;
  for (const Piece& piece : pieces) mean.work += piece.work, mean.others += piece.others;
  const int64_t count = std::max<int64_t>(std::ssize(pieces), 1);
  return {mean.work / count, mean.others / count};
}

// How much of the work of those that count a request takes, by least squares within the ways.
int64_t taken_by_others(const std::array<Pieces, 2>& pieces, const std::array<Piece, 2>& mean) {
  int64_t covariance = 0, variance = 0;
  for (size_t way = 0; way < 2; ++way) {
    for (const Piece& piece : pieces[way]) {
      const int64_t others = piece.others - mean[way].others;
      covariance += others * (piece.work - mean[way].work);
      variance += others * others;
    }
  }
  return variance > 0 ? std::clamp<int64_t>(-covariance / std::max<int64_t>(variance / kGainParts, 1), 0, kRatioMost) : 0;
}

// Of the mean of a spell, in parts of it.
int64_t variance_of(const Pieces& pieces, const Piece& mean, int64_t takes, int64_t work) {
  int64_t squares = 0;
  for (const Piece& piece : pieces) {
    const int64_t off = piece.work - mean.work + takes * (piece.others - mean.others) / kGainParts;
    squares += off * off;
  }
  const int64_t count = std::ssize(pieces);
  if (count < 2) return kErrorMost * kErrorMost;  // not known
  return std::min(squares / (count * (count - 1)), kSquaresMost) * kGainParts * kGainParts / (work * work);
}

}  // namespace

ShareGain gain_of(const SpellPieces& spells, const std::map<ClientId, int>& seldom) {
  const PieceRates means = means_of(spells);
  const std::array<Pieces, 2> pieces = {pieces_of(spells[0], means, seldom), pieces_of(spells[1], means, seldom)};
  const std::array<Piece, 2> mean = {mean_of(pieces[0]), mean_of(pieces[1])};
  const int64_t takes = taken_by_others(pieces, mean);
  // Who lies decides no more than one that goes from nothing to all it can.
  const int64_t moved = std::clamp(takes * (mean[1].others - mean[0].others) / (2 * kGainParts), -kGainParts, kGainParts);
  const int64_t together = std::max<int64_t>(mean[0].work - moved, 0), turns = std::max<int64_t>(mean[1].work + moved, 0);
  if (together == 0 || turns == 0) return {};
  const int64_t ratio = std::min(turns * kGainParts / together, kRatioMost);
  const int64_t relative = variance_of(pieces[0], mean[0], takes, together) + variance_of(pieces[1], mean[1], takes, turns);
  const int64_t bounded = std::clamp(relative, kErrorLeast * kErrorLeast, kErrorMost * kErrorMost);
  return {ratio, bounded * (ratio * ratio / kGainParts) / kGainParts};
}

void GainPool::add(const ShareGain& gain) {
  const int64_t weight = std::max<int64_t>(kWhole / std::max<int64_t>(gain.variance, 1), 1);
  const int64_t apart = gain.ratio - ratio_;
  if (trials_ == 0 || apart * apart > kOther * kOther * (gain.variance + kWhole / weight_)) {
    *this = {};
    ratio_ = gain.ratio;
    weight_ = weight;
  } else {
    weight_ = std::max<int64_t>(weight_ / 2, 1);  // things change
    ratio_ = (ratio_ * weight_ + gain.ratio * weight) / (weight_ + weight);
    weight_ += weight;
  }
  ++trials_;
}

}  // namespace nvshare::policy
