// Virtual time: what is due happens in order, nothing else passes time. And the story of a run, for people. Not thread-safe.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace nvshare::simulation {

using Instant = int64_t;   // nanoseconds
using Duration = int64_t;  // nanoseconds
using Bytes = int64_t;

inline constexpr Duration kUs = 1'000;
inline constexpr Duration kMs = 1'000'000;
inline constexpr Duration kSec = 1'000'000'000;
inline constexpr Bytes kMiB = int64_t{1} << 20;
inline constexpr Bytes kGiB = int64_t{1} << 30;

// splitmix64: cheap to make, so that each part of a run has its own and taking one part away leaves the others as they were.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  uint64_t state_;
};

class World {
 public:
  static constexpr Instant kStart = 1'000 * kSec;

  explicit World(bool tells) : tells_(tells) {}

  Instant now() const { return now_; }
  Duration elapsed() const { return now_ - kStart; }
  void after(Duration delay, std::function<void()> what) {
    queue_.emplace(std::pair(now_ + (delay > 0 ? delay : 0), ++order_), std::move(what));
  }
  // The next of what is due. False: nothing is, or something is wrong.
  bool step() {
    if (queue_.empty() || broken()) return false;
    auto first = queue_.begin();
    now_ = first->first.first;
    const std::function<void()> what = std::move(first->second);
    queue_.erase(first);
    ++steps_;
    what();
    return true;
  }
  uint64_t steps() const { return steps_; }

  // The first that is wrong ends the run.
  void fail(std::string what) {
    if (!broken()) broken_ = std::move(what);
  }
  bool broken() const { return !broken_.empty(); }
  const std::string& problem() const { return broken_; }

  template <typename... Parts>
  void tell(fmt::format_string<Parts...> format, Parts&&... parts) {
    if (!tells_) return;
    story_ += fmt::format("{:12.3f} ms  ", static_cast<double>(elapsed()) / 1e6);
    story_ += fmt::format(format, std::forward<Parts>(parts)...);
    story_ += '\n';
  }
  const std::string& story() const { return story_; }

 private:
  const bool tells_;
  Instant now_ = kStart;
  uint64_t order_ = 0;
  uint64_t steps_ = 0;
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> queue_;
  std::string broken_;
  std::string story_;
};

}  // namespace nvshare::simulation
