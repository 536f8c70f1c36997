// "--name value" pairs and what programs wait for. Numbers may end in K, M or G (powers of 1024).
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "e2e/worker/cuda.h"

namespace nvshare::e2e {

class Options {
 public:
  Options(int argc, char** argv) : words_(argv + 1, argv + argc) {}

  std::string text(const char* name, const char* otherwise) const {
    for (size_t i = 0; i + 1 < words_.size(); ++i) {
      if (words_[i] == std::string("--") + name) return words_[i + 1];
    }
    return otherwise;
  }

  uint64_t number(const char* name, uint64_t otherwise) const {
    std::string given = text(name, "");
    if (given.empty()) return otherwise;
    char* end = nullptr;
    double value = std::strtod(given.c_str(), &end);
    constexpr const char* kUnits = "KMG";
    for (const char* unit = kUnits; *unit != '\0'; ++unit) {
      if (*end != *unit) continue;
      for (const char* u = kUnits; u <= unit; ++u) value *= 1024;
      ++end;
      break;
    }
    if (*end != '\0' || value < 0) fail(kExitUsage, "--%s is '%s'; it must be a number like 64, 1.5G or 300M", name, given.c_str());
    return static_cast<uint64_t>(value);
  }

  // The mode: the first word.
  std::string mode() const { return words_.empty() ? "" : words_[0]; }

  // The test wants the program to come to its end.
  bool told_to_stop() const { return access(text("stop", "").c_str(), F_OK) == 0; }

 private:
  std::vector<std::string> words_;
};

// A line for the test to see, written at once.
inline void say(const char* text) {
  std::printf("%s\n", text);
  std::fflush(stdout);
}

// Says that it stands still, and waits until the test lets it go on (--go FILE) or to its end.
inline void stand_still(const Options& options) {
  say("standing still");
  while (access(options.text("go", "").c_str(), F_OK) != 0 && !options.told_to_stop()) usleep(1000);
}

}  // namespace nvshare::e2e
