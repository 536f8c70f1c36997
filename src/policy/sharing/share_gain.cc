#include "policy/sharing/share_gain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>

namespace nvshare::policy {
namespace {

constexpr int64_t kErrorLeast = kGainParts / 100;  // what is submitted is done up to 10 ms later
constexpr int64_t kErrorMost = kGainParts;
constexpr int64_t kRateMost = 1'000'000'000'000;  // more than any program submits
constexpr int64_t kRatioMost = 10 * kGainParts;
constexpr int64_t kSquaresMost = 10'000'000'000;
constexpr int64_t kWhole = 1'000'000'000'000;  // of weights
constexpr int64_t kOther = 3;                  // so many errors away: not the same programs' work any more
constexpr size_t kTakers = 3;                  // whose requests are told from each other; the rest count as one: a trial has few pieces
constexpr int kRounds = 300;                   // at most, until what each of them takes changes no more

using Numbers = std::vector<int64_t>;  // of each piece of a spell
using BothWays = std::array<Numbers, 2>;

// The requests of a client, or of several, that works seldom.
struct Taker {
  BothWays asks;      // in parts of the most that it did in a piece
  int64_t takes = 0;  // of the work of those that count
};

int64_t bounded(int64_t rate) { return std::clamp<int64_t>(rate, 0, kRateMost); }

int64_t mean_of(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}) / std::max<int64_t>(std::ssize(numbers), 1);
}

// How much more in turns.
int64_t swing_of(const BothWays& numbers) { return mean_of(numbers[1]) - mean_of(numbers[0]); }

// Each number's distance from the mean of its way, by what `use` is told of the way, the piece and the distance.
template <typename Use>
void each_off(const BothWays& numbers, Use use) {
  for (size_t way = 0; way < 2; ++way) {
    const int64_t mean = mean_of(numbers[way]);
    for (size_t piece = 0; piece < numbers[way].size(); ++piece) use(way, piece, numbers[way][piece] - mean);
  }
}

int64_t products_of(const BothWays& one, const BothWays& other) {
  int64_t products = 0;
  each_off(one, [&](size_t way, size_t piece, int64_t off) { products += off * (other[way][piece] - mean_of(other[way])); });
  return products;
}

int64_t squares_of(const BothWays& numbers) { return products_of(numbers, numbers); }

BothWays rates_of(ClientId id, const SpellPieces& spells) {
  BothWays rates;
  for (size_t way = 0; way < 2; ++way) {
    for (const PieceRates& piece : spells[way]) {
      const auto found = piece.find(id);
      rates[way].push_back(found == piece.end() ? 0 : bounded(found->second));
    }
  }
  return rates;
}

void add_parts(BothWays& sums, const BothWays& rates, int64_t whole) {
  for (size_t way = 0; way < 2; ++way) {
    sums[way].resize(rates[way].size());
    for (size_t piece = 0; piece < rates[way].size(); ++piece) sums[way][piece] += rates[way][piece] * kGainParts / whole;
  }
}

std::set<ClientId> clients_of(const SpellPieces& spells) {
  std::set<ClientId> ids;
  for (const std::vector<PieceRates>& spell : spells)
    for (const PieceRates& piece : spell)
      for (const auto& [id, rate] : piece) ids.insert(id);
  return ids;
}

// Those whose requests differ most between the ways come first, each for itself.
std::vector<Taker> takers_of(const SpellPieces& spells, const std::map<ClientId, int>& seldom) {
  std::vector<Taker> takers;
  for (const auto& [id, looks] : seldom) {
    const BothWays rates = rates_of(id, spells);
    int64_t most = 0;
    for (const Numbers& of_way : rates)
      for (const int64_t rate : of_way) most = std::max(most, rate);
    if (most > 0) add_parts(takers.emplace_back().asks, rates, most);
  }
  std::stable_sort(takers.begin(), takers.end(),
                   [](const Taker& one, const Taker& other) { return std::abs(swing_of(one.asks)) > std::abs(swing_of(other.asks)); });
  for (size_t rest = kTakers + 1; rest < takers.size(); ++rest) add_parts(takers[kTakers].asks, takers[rest].asks, kGainParts);
  takers.resize(std::min(takers.size(), kTakers + 1));
  return takers;
}

// The sum of what those that count did, each in parts of the mean of its means of both ways: whatever it says, it weighs as much as any
// other.
BothWays work_of(const SpellPieces& spells, const std::map<ClientId, int>& seldom) {
  BothWays work = {Numbers(spells[0].size()), Numbers(spells[1].size())};
  for (const ClientId id : clients_of(spells)) {
    if (seldom.contains(id)) continue;
    BothWays rates = rates_of(id, spells);
    const int64_t means = mean_of(rates[0]) + mean_of(rates[1]);
    for (Numbers& of_way : rates)
      for (int64_t& rate : of_way) rate *= 2;
    if (means > 0) add_parts(work, rates, means);
  }
  return work;
}

// What each takes, by least squares within the ways, and no less than nothing: each in turn, from what the others leave unexplained.
// Returns what all leave.
BothWays learn_takers(const BothWays& work, std::vector<Taker>& takers) {
  BothWays rest = work;
  const auto take = [&](const Taker& taker, int64_t takes) {
    each_off(taker.asks, [&](size_t way, size_t piece, int64_t off) { rest[way][piece] += takes * off / kGainParts; });
  };
  bool changes = true;
  for (int round = 0; round < kRounds && changes; ++round) {
    changes = false;
    for (Taker& taker : takers) {
      const int64_t squares = squares_of(taker.asks);
      if (squares == 0) continue;
      const int64_t before = taker.takes;
      take(taker, -before);
      taker.takes = std::clamp<int64_t>(-products_of(taker.asks, rest) / std::max<int64_t>(squares / kGainParts, 1), 0, kRatioMost);
      take(taker, taker.takes);
      changes |= taker.takes != before;
    }
  }
  return rest;
}

// Of the mean of a spell, in parts of it.
int64_t variance_of(const Numbers& rest, int64_t work) {
  int64_t squares = 0;
  const int64_t mean = mean_of(rest);
  for (const int64_t each : rest) squares += (each - mean) * (each - mean);
  const int64_t count = std::ssize(rest);
  if (count < 2) return kErrorMost * kErrorMost;  // not known
  return std::min(squares / (count * (count - 1)), kSquaresMost) * kGainParts * kGainParts / (work * work);
}

// How far the swings of all takers are from what the pieces within the ways told of them: requests that come in step tell little of each.
// With S the swings and P the takers' products with each other, S * P^-1 * S, by P's Cholesky factor.
double novelty_of(const std::vector<Taker>& takers) {
  std::array<std::array<double, kTakers + 1>, kTakers + 1> factor{};
  std::array<double, kTakers + 1> solved{};
  double sum = 0;
  for (size_t row = 0; row < takers.size(); ++row) {
    auto rest = static_cast<double>(swing_of(takers[row].asks));
    for (size_t column = 0; column <= row; ++column) {
      auto left = static_cast<double>(products_of(takers[row].asks, takers[column].asks));
      for (size_t i = 0; i < column; ++i) left -= factor[row][i] * factor[column][i];
      factor[row][column] = row == column ? std::sqrt(std::max(left, 1.0)) : left / factor[column][column];
    }
    for (size_t i = 0; i < row; ++i) rest -= factor[row][i] * solved[i];
    solved[row] = rest / factor[row][row];
    sum += solved[row] * solved[row];
  }
  return sum;
}

// Of what was put aside: what each request takes is known no better than what is left unexplained.
int64_t variance_of_takers(const BothWays& rest, const std::vector<Taker>& takers, int64_t work) {
  const int64_t pieces = std::ssize(rest[0]) + std::ssize(rest[1]);
  const int64_t unexplained = squares_of(rest) / std::max<int64_t>(pieces - 2 - std::ssize(takers), 1);
  const double variance = std::min(static_cast<double>(unexplained + 1) * novelty_of(takers), static_cast<double>(kSquaresMost));
  return static_cast<int64_t>(variance) * kGainParts * kGainParts / (work * work);
}

}  // namespace

ShareGain gain_of(const SpellPieces& spells, const std::map<ClientId, int>& seldom) {
  const BothWays work = work_of(spells, seldom);
  std::vector<Taker> takers = takers_of(spells, seldom);
  const BothWays rest = learn_takers(work, takers);
  int64_t taken = 0;
  for (const Taker& taker : takers) taken += taker.takes * swing_of(taker.asks) / kGainParts;
  // What is put aside is no more than what one that goes from nothing to all it can makes of it.
  const int64_t moved = std::clamp(taken / 2, -kGainParts, kGainParts);
  const int64_t together = std::max<int64_t>(mean_of(work[0]) - moved, 0), turns = std::max<int64_t>(mean_of(work[1]) + moved, 0);
  if (together == 0 || turns == 0) return {};
  const int64_t ratio = std::min(turns * kGainParts / together, kRatioMost);
  const int64_t aside = std::min(variance_of_takers(rest, takers, (together + turns) / 2), kErrorMost * kErrorMost);
  const int64_t relative = variance_of(rest[0], together) + variance_of(rest[1], turns) + aside;
  const int64_t variance = std::clamp(relative, kErrorLeast * kErrorLeast, kErrorMost * kErrorMost);
  return {ratio, variance * (ratio * ratio / kGainParts) / kGainParts, aside};
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
