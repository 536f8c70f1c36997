// nvsharectl demo: jobs that do not fit together, one after the other, under nvshare, and by demand paging.
#pragma once

namespace nvshare::cli::demo {

struct DemoOptions {
  int jobs = 4;           // 2 .. 8
  bool json = false;      // the outcome as one line of JSON instead of the table
  bool stand_in = false;  // the stand-in GPU even where there is a real one
  bool paging = true;     // compare with demand paging (stand-in only)
};

// 0 when everything that the demo promises held, else 1 (said on stderr).
int demo_command(const DemoOptions& options);

}  // namespace nvshare::cli::demo
