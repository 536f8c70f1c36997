// The lines of a recording (scheduler/trace.h), one after the other. A scheduler that is killed leaves its last line incomplete, and one
// that runs may be writing it: such a line is left out, any other that is no line of a recording is an error. Not thread-safe.
#pragma once

#include <cstddef>
#include <istream>
#include <optional>
#include <string>

#include "base/result.h"
#include "scheduler/trace.h"

namespace nvshare::replay {

class Recording {
 public:
  explicit Recording(std::istream& lines) : lines_(lines) {}

  struct Line {
    size_t number = 0;  // from 1
    scheduler::TraceLine is;
  };
  // Nullopt: there are no more. An error names the line.
  Result<std::optional<Line>> next();
  size_t incomplete() const { return incomplete_; }  // lines that were left out so far

 private:
  bool read();
  Result<std::optional<Line>> checked(Line line);
  std::optional<Line> of_the_next_scheduler();

  std::istream& lines_;
  std::string text_;
  size_t number_ = 0;
  policy::Instant first_ = -1, last_ = 0;  // of the scheduler that is read; -1: none yet
  size_t incomplete_ = 0;
};

}  // namespace nvshare::replay
