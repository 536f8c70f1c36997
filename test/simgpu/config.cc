#include "simgpu/config.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace simgpu {
namespace {

// A value that makes no sense ends the program: a test with a mistyped setting must not run on some default.
double number(const char* name, double fallback, double low, double high) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= low && value <= high)) {
    std::fprintf(stderr, "simgpu: %s is '%s'; it may be a number from %g to %g\n", name, text, low, high);
    std::abort();
  }
  return value;
}

const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Config read() {
  constexpr double kMiB = 1 << 20;
  Config config;
  config.state_path = text("SIMGPU_STATE");
  if (config.state_path.empty()) config.state_path = "/dev/shm/simgpu-" + std::to_string(getuid());
  config.device_count = static_cast<int>(number("SIMGPU_COUNT", 1, 0, 8));
  const auto memory_mb = static_cast<uint64_t>(number("SIMGPU_MEMORY_MB", 512, 4, 65536));
  config.memory_bytes = (memory_mb / 2 * 2) << 20;
  config.context_bytes = static_cast<uint64_t>(number("SIMGPU_CONTEXT_MB", 8, 0, 65536) * kMiB);
  config.module_bytes = static_cast<uint64_t>(number("SIMGPU_MODULE_MB", 0, 0, 65536) * kMiB);
  config.lazy_modules = number("SIMGPU_LAZY_MODULES", 0, 0, 1) != 0;
  config.link_bytes_per_s = number("SIMGPU_LINK_MBPS", 2000, 0.001, 1e9) * 1e6;
  config.pin_bytes_per_s = number("SIMGPU_PIN_MBPS", 0, 0, 1e9) * 1e6;
  config.time_scale = number("SIMGPU_TIME_SCALE", 1, 0, 1e6);
  config.reclaim_delay_ns = static_cast<uint64_t>(number("SIMGPU_RECLAIM_DELAY_MS", 0, 0, 600000) * 1e6);
  config.no_nvml = number("SIMGPU_NO_NVML", 0, 0, 1) != 0;
  config.mig_devices = static_cast<int>(number("SIMGPU_MIG", 0, 0, 6));
  config.nvlink_group = static_cast<int>(number("SIMGPU_NVLINK_GROUP", 0, 0, 8));
  config.no_peers = number("SIMGPU_NO_PEERS", 0, 0, 1) != 0;
  config.copies_through_files = number("SIMGPU_COPIES_THROUGH_FILES", 0, 0, 1) != 0;
  config.faults = text("SIMGPU_FAULTS");
  return config;
}

}  // namespace

const Config& config() {
  static const Config* const kConfig = new Config(read());  // never destroyed: threads outlive exit handlers
  return *kConfig;
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_until_ns(uint64_t instant_ns) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(instant_ns / 1000000000u);
  until.tv_nsec = static_cast<long>(instant_ns % 1000000000u);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

}  // namespace simgpu
