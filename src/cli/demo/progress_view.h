// Shows how the demo's jobs get on: bars that are drawn over on a terminal, a plain line every few seconds elsewhere. Not thread-safe.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace nvshare::cli::demo {

struct JobLine {
  std::string label;  // "job 1"
  double done = 0;    // 0 .. 1
  std::string state;  // "running", "waiting: ..."
};

class ProgressView {
 public:
  // `columns` = 0: no terminal, plain lines.
  ProgressView(std::FILE* out, int columns) : out_(out), columns_(columns) {}

  // A phase begins; its title stays on the screen.
  void begin(const std::string& title);
  void show(const std::vector<JobLine>& lines, double elapsed_s);
  // What `show` drew last is replaced by one line.
  void end(const std::string& summary);

 private:
  void erase();

  std::FILE* out_;
  int columns_;
  size_t drawn_ = 0;         // lines that are on the screen and will be drawn over
  double next_plain_s_ = 0;  // when the next plain line is due
};

// "[#####.....]  52 %"
std::string bar(double done, int width);

}  // namespace nvshare::cli::demo
