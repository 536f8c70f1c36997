// Who ran on each GPU before `top` began, of what the scheduler remembers of its last minute (scheduler/trace_ring.h). Pure, not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/trace.h"

namespace nvshare::cli::top {

// What happened on a GPU in a piece of time.
struct Cell {
  std::map<uint64_t, double> ran_s;  // by tenant; one with several clients at once counts each
  double swapping_s = 0;
};

class Past {
 public:
  // The next line that the scheduler answered. What tells of no client is passed over.
  Result<void> add(std::string_view line);

  // Of a GPU, by the UUID that what it is called ends with: so many pieces of `cell_s` as are remembered whole, oldest first. The last one
  // ends with the last line.
  std::vector<Cell> cells_of(const std::string& uuid, double cell_s) const;

 private:
  struct Span {
    policy::ClientId client;
    policy::TenantId tenant;
    policy::ClientState state;
    policy::Instant begin, end;
  };

  void see(policy::Instant now);
  void close(policy::ClientId client, policy::Instant now);

  std::map<policy::ClientId, std::string> gpu_of_;  // by what it is called
  std::map<policy::ClientId, Span> open_;
  std::vector<Span> done_;
  policy::Instant first_ = -1, last_ = 0;
};

}  // namespace nvshare::cli::top
