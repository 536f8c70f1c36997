// The terminal as a screen: alternate buffer, no echo, keys as they come. Puts everything back when it ends, also on a signal that ends
// the program. Not thread-safe; one at a time.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/top/screen.h"

namespace nvshare::cli::top {

struct Size {
  size_t columns = 80;
  size_t lines = 24;
};

class Terminal {
 public:
  // The error says why there is none (standard input or output is no terminal).
  static Result<Terminal> open(bool colour);
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&&) = delete;
  ~Terminal();

  Size size() const;
  // Writes the lines that differ from what is there.
  void show(const Screen& screen);
  // What was typed, after at most `timeout_ms`, or as soon as `other` (a descriptor; -1: none) is readable; empty: nothing. `ended`: the
  // terminal is gone.
  std::string read(int timeout_ms, int other, bool& ended);
  // A signal asked the program to end.
  static bool asked_to_end();

 private:
  Terminal(const termios& before, bool colour) : before_(before), colour_(colour) {}

  termios before_;
  bool colour_;
  bool owns_ = true;
  Size shown_size_;
  std::vector<std::string> shown_;
};

}  // namespace nvshare::cli::top
