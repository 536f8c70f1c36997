// A day's jobs, made up from distributions whose sources docs/fleet.md names. Pure: the same seed gives the same jobs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace nvshare::fleet {

using Nanoseconds = int64_t;
inline constexpr Nanoseconds kSecond = 1'000'000'000;
inline constexpr Nanoseconds kHour = 3600 * kSecond;
inline constexpr int64_t kGiB = int64_t{1} << 30;

enum class Kind { kInference, kNotebook, kTraining, kBatch };
inline constexpr std::array kKinds = {Kind::kInference, Kind::kNotebook, Kind::kTraining, Kind::kBatch};
const char* name_of(Kind kind);

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  double uniform();  // 0 <= x < 1
  double exponential(double mean);
  double lognormal(double median, double sigma);

 private:
  uint64_t state_;
};

struct Job {
  Kind kind = Kind::kBatch;
  Nanoseconds arrival = 0;
  int gpus = 1;
  int64_t memory = 0;        // bytes that it uses on each GPU
  int64_t memory_asked = 0;  // and asks for
  int cores_asked = 100;     // percent of each GPU
  double seconds = 0;        // alone on its GPUs: until it has done its work, or, of a session, until it ends
  uint64_t seed = 0;         // of its phases
};

// A session ends when its time is over, whatever it got done; other jobs when their work is done.
bool is_session(Kind kind);

// Work on each GPU, then nothing; in GPU-seconds at `rate` (part of a GPU's time that the work can use), and seconds.
struct Phase {
  double work = 0;
  double idle = 0;
};
Phase next_phase(Kind kind, Random& random);
// Part of a GPU's time that a job of that kind uses while it works.
double rate_of(Kind kind);

struct Day {
  int gpus = 8000;
  double load = 1;  // GPU-hours asked of exclusive GPUs, by those that there are
  Nanoseconds length = 24 * kHour;
  int64_t gpu_memory = 80 * kGiB;
  uint64_t seed = 1;
};
// In the order of arrival.
std::vector<Job> make_jobs(const Day& day);

}  // namespace nvshare::fleet
