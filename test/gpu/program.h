// Small things that the test programs share: options, statistics, launching a kernel. Not thread-safe unless said.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "driver.h"

namespace gputest {

// "--name value" pairs; every value is a number with an optional suffix K, M or G (powers of 1024), or text.
class Options {
 public:
  Options(int argc, char** argv) : words_(argv + 1, argv + argc) {}

  uint64_t number(const char* name, uint64_t otherwise) const {
    const std::string text = this->text(name, "");
    if (text.empty()) {
      return otherwise;
    }
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    double unit = 1;
    switch (*end) {
      case 'G':
        unit *= 1024;
        [[fallthrough]];
      case 'M':
        unit *= 1024;
        [[fallthrough]];
      case 'K':
        unit *= 1024;
        ++end;
        break;
      default:
        break;
    }
    if (end == text.c_str() || *end != '\0' || value < 0) {
      std::fprintf(stderr, "--%s is '%s'; it must be a number like 64, 1.5G or 300M\n", name, text.c_str());
      std::exit(2);
    }
    return static_cast<uint64_t>(value * unit);
  }

  std::string text(const char* name, const char* otherwise) const {
    for (size_t i = 0; i + 1 < words_.size(); ++i) {
      if (words_[i] == std::string("--") + name) {
        return words_[i + 1];
      }
    }
    return otherwise;
  }

  bool has(const char* name) const { return std::find(words_.begin(), words_.end(), std::string("--") + name) != words_.end(); }

 private:
  std::vector<std::string> words_;
};

struct Statistics {
  double median = 0;
  double lowest = 0;
  double highest = 0;
};

inline Statistics statistics_of(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

inline double seconds_since(uint64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }
inline double micros_since(uint64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-3; }

// Launches with a grid that fills the card when `words` is large. Errors end the process.
template <class... Arguments>
void launch(CUfunction function, uint64_t words, CUstream stream, Arguments... arguments) {
  std::tuple<Arguments...> held(arguments...);
  const unsigned blocks = static_cast<unsigned>(std::clamp<uint64_t>(words / 256, 1, 2048));
  std::apply(
      [&](auto&... each) {
        void* pointers[] = {static_cast<void*>(&each)..., nullptr};
        require(driver().launch_kernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, pointers, nullptr), "cuLaunchKernel");
      },
      held);
}

// One block of one warp that keeps the GPU busy.
inline void launch_spin(CUfunction spin, uint64_t nanoseconds, CUstream stream) {
  void* pointers[] = {&nanoseconds};
  require(driver().launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, pointers, nullptr), "cuLaunchKernel");
}

}  // namespace gputest
