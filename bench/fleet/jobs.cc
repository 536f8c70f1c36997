#include "fleet/jobs.h"

#include <algorithm>
#include <cmath>

namespace nvshare::fleet {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Of each kind: its part of the arrivals, seconds (lognormal: median, sigma, bounds), bytes of memory likewise, work and pauses.
struct Shape {
  double arrivals;
  double seconds_median, seconds_sigma, seconds_least, seconds_most;
  double memory_median_gib, memory_sigma;
  double rate, work_mean, idle_mean;
};

constexpr Shape kInferenceShape = {0.05, 8 * 3600, 0.8, 1800, 48 * 3600, 24, 0.6, 0.30, 6, 180};
constexpr Shape kNotebookShape = {0.15, 2 * 3600, 0.7, 600, 12 * 3600, 20, 0.6, 1.00, 10, 180};
constexpr Shape kTrainingShape = {0.25, 3600, 1.3, 120, 36 * 3600, 44, 0.4, 1.00, 900, 300};
constexpr Shape kBatchShape = {0.55, 300, 1.5, 20, 12 * 3600, 22, 0.6, 0.80, 24, 30};

const Shape& shape_of(Kind kind) {
  switch (kind) {
    case Kind::kInference:
      return kInferenceShape;
    case Kind::kNotebook:
      return kNotebookShape;
    case Kind::kTraining:
      return kTrainingShape;
    case Kind::kBatch:
      return kBatchShape;
  }
  return kBatchShape;
}

int gpus_of(Kind kind, Random& random) {
  const double draw = random.uniform();
  if (kind != Kind::kTraining || draw < 0.70) return 1;
  return draw < 0.80 ? 2 : draw < 0.88 ? 4 : 8;
}

int cores_of(Kind kind, int gpus, Random& random) {
  const double draw = random.uniform();
  switch (kind) {
    case Kind::kInference:
      return draw < 0.6 ? 10 : 30;
    case Kind::kNotebook:
      return draw < 0.7 ? 20 : 40;
    case Kind::kTraining:
      return gpus == 1 && draw < 0.4 ? 50 : 100;
    case Kind::kBatch:
      return draw < 0.5 ? 30 : 50;
  }
  return 100;
}

Job make_job(Kind kind, const Day& day, Random& random) {
  const Shape& shape = shape_of(kind);
  Job job;
  job.kind = kind;
  job.gpus = gpus_of(kind, random);
  job.cores_asked = cores_of(kind, job.gpus, random);
  job.seconds = std::clamp(random.lognormal(shape.seconds_median, shape.seconds_sigma), shape.seconds_least, shape.seconds_most);
  const double most = static_cast<double>(day.gpu_memory) * 0.92;
  job.memory = static_cast<int64_t>(std::clamp(random.lognormal(shape.memory_median_gib, shape.memory_sigma) * kGiB, 1.0 * kGiB, most));
  // Nobody knows the peak beforehand: a fifth more, in whole GiB.
  job.memory_asked = std::min((job.memory + job.memory / 5 + kGiB - 1) / kGiB * kGiB, day.gpu_memory);
  job.seed = random.next();
  return job;
}

Kind kind_of(Random& random) {
  double draw = random.uniform();
  for (const Kind kind : kKinds) {
    draw -= shape_of(kind).arrivals;
    if (draw < 0) return kind;
  }
  return Kind::kBatch;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kInference:
      return "inference";
    case Kind::kNotebook:
      return "notebook";
    case Kind::kTraining:
      return "training";
    case Kind::kBatch:
      return "batch";
  }
  return "";
}

bool is_session(Kind kind) { return kind == Kind::kInference || kind == Kind::kNotebook; }

double rate_of(Kind kind) { return shape_of(kind).rate; }

uint64_t Random::next() {
  uint64_t mixed = state_ += 0x9E3779B97F4A7C15ULL;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
  return mixed ^ (mixed >> 31);
}

double Random::uniform() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }

double Random::exponential(double mean) { return -mean * std::log(1 - uniform()); }

double Random::lognormal(double median, double sigma) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return median * std::exp(sigma * radius * std::cos(2 * kPi * uniform()));
}

Phase next_phase(Kind kind, Random& random) {
  const Shape& shape = shape_of(kind);
  return {std::max(random.exponential(shape.work_mean), 0.01), random.exponential(shape.idle_mean)};
}

std::vector<Job> make_jobs(const Day& day) {
  Random random(day.seed);
  // What a job takes of exclusive GPUs on average, from a sample of its own.
  Random sampled(day.seed ^ 0x5EED);
  double mean_seconds = 0;
  constexpr int kSample = 20000;
  for (int i = 0; i < kSample; ++i) {
    const Job job = make_job(kind_of(sampled), day, sampled);
    mean_seconds += job.seconds * job.gpus / kSample;
  }
  const double per_second = day.load * day.gpus / mean_seconds;
  // Half as many at four in the night as on average, half as many again in the afternoon.
  std::vector<Job> jobs;
  const double length = static_cast<double>(day.length) / kSecond;
  for (double at = random.exponential(1 / (1.5 * per_second)); at < length; at += random.exponential(1 / (1.5 * per_second))) {
    const double wave = 1 - 0.5 * std::cos(2 * kPi * (at / 86400 - 4.0 / 24));
    if (random.uniform() * 1.5 >= wave) continue;
    Job job = make_job(kind_of(random), day, random);
    job.arrival = static_cast<Nanoseconds>(at * kSecond);
    jobs.push_back(job);
  }
  return jobs;
}

}  // namespace nvshare::fleet
