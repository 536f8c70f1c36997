// What a run consists of: drawn from a seed, then taken as data, so that a failing run can be shrunk by leaving parts of it out.
#pragma once

#include <string>
#include <vector>

#include "policy/policy.h"
#include "world.h"

namespace nvshare::simulation {

// What one thread of a program does next.
struct Step {
  // kMeet: collectives over all GPUs of the program. kCapture: a stream captures for so long, then what was captured runs. kReset: the
  // program's context ends, and with it its memory; after `amount` there is another.
  enum class Kind : uint8_t { kRun, kPause, kGrow, kShrink, kMeet, kCapture, kReset } kind;
  int64_t amount;  // nanoseconds of GPU work, of a capture, or of doing nothing; or bytes
  int gpu = 0;     // which of the program's
};

struct ProgramPlan {
  uint64_t number = 0;  // its random numbers come from it
  const char* kind = "";
  Duration starts = 0;
  int tenant = 0;
  std::vector<int> gpus;
  Bytes allocated = 0;  // on each GPU, before anything else
  Bytes context = 0;    // that its context takes on each GPU
  Duration kernel = 0;  // length of the longest
  Duration ahead = 0;   // of the GPU's work it submits so much before it waits, where nobody bounds it
  int linked = 0;       // percent of its kernels that end only once the program has submitted the next
  int evictions_to_fail = 0;
  int loads_to_fail = 0;    // as its context cannot be entered
  bool waits_seen = false;  // its waits for the GPU are calls that the library sees, and pass no gate
  bool former = false;      // its library speaks the previous protocol version
  std::vector<std::vector<Step>> threads;
};

// When a program is in the middle of something, so that faults meet it there more often than by chance.
enum class Moment : uint8_t { kAny, kRegisters, kLoads, kEvicts, kDrains, kGrows, kAsksHeadroom, kPrefetches };

struct Fault {
  // kHang: what the program has on the GPUs ends so much later. kDriverShort: the driver has no memory for what it loads for so long.
  // kForeign: a program that is no client takes memory of the program's first GPU, for so long. kFork: the program has a child for so long,
  // which keeps the driver's files open, and with them all that the program has on the GPUs, should it end first.
  enum class Kind : uint8_t {
    kKill,
    kStop,
    kCut,
    kRestart,
    kComputeLimit,
    kMemoryLimit,
    kPriority,
    kFree,
    kHostTaken,
    kHang,
    kDriverShort,
    kForeign,
    kFork
  } kind;
  Duration at = 0;
  size_t program = 0;  // of which; as in Plan::programs. Not of kRestart
  int64_t amount = 0;  // how long it is stopped, or the scheduler away, or host memory is taken; percent; bytes; priority
  // Not at `at`, but `after` the first such moment of the program's from then on; never, if it has none.
  Moment moment = Moment::kAny;
  Duration after = 0;
  bool former = false;  // of kRestart: the scheduler that comes back speaks the previous protocol version
  Bytes bytes = 0;      // of kHostTaken: so much the machine has less meanwhile; of kForeign
  bool listed = true;   // of kForeign: NVML lists its process
  bool holds = false;   // of kFork: it was made without libc, and keeps the connections open as well
};

struct Plan {
  uint64_t seed = 0;
  policy::Config policy;
  int gpus = 1;
  bool nvml = false;  // the scheduler sees what each process has on the GPUs
  // Of processes, as from another namespace, it sees none or others' numbers.
  enum class Blind : uint8_t { kNot, kNone, kOtherNumbers } blind = Blind::kNot;
  Bytes gpu_bytes = 16 * kGiB;
  Bytes host_bytes = 256 * kGiB;  // for swapped memory
  bool host_lent = false;         // it is lent by the scheduler, in segments; else each program has what it needs
  int64_t bandwidth = 10 * kGiB;  // bytes per second, each way
  Duration latency = kMs;         // the longest that a message takes
  Duration wake = 0;              // the longest that a thread takes to wake
  bool former_scheduler = false;  // the first one speaks the previous protocol version
  bool sharing_measured = false;  // `sharing = auto`
  bool bounded = true;            // all answer and can move, so that each waiting client has a bound
  std::vector<ProgramPlan> programs;
  std::vector<Fault> faults;
};

// What plans have, in the order in which it came: a test of a seed that found something draws it as it was then.
enum class Traits : uint8_t {
  kFirst,
  kFrees,   // programs free memory at moments, host memory is short
  kMoves,   // waits that are seen, captures, contexts that end, loads that fail, a GPU that hangs
  kMemory,  // contexts and other programs take memory
  kAll,     // forks
};
Plan draw_plan(uint64_t seed, Traits traits = Traits::kAll);
std::string describe(const Plan& plan);

}  // namespace nvshare::simulation
