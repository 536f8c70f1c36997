// What the environment says about the stand-in (README.md has the table). Read once a process; immutable afterwards.
#pragma once

#include <cstdint>
#include <string>

namespace simgpu {

struct Config {
  std::string state_path;         // the file that all processes of one machine share
  int device_count = 1;           // 1..8
  uint64_t memory_bytes = 0;      // of each device; a multiple of 2 MiB
  uint64_t context_bytes = 0;     // what one context takes
  uint64_t module_bytes = 0;      // what one module takes
  bool lazy_modules = false;      // at the first launch in a context instead of at loading
  double link_bytes_per_s = 0;    // pinned copies, each direction
  double pin_bytes_per_s = 0;     // making host memory page-locked, all threads of a process together; 0: takes no time
  double time_scale = 1;          // multiplies every simulated duration; 0: nothing takes time
  uint64_t reclaim_delay_ns = 0;  // from the death of a process to its memory being free
  bool no_nvml = false;
  int mig_devices = 0;                // of the first GPU, in NVML alone
  bool copies_through_files = false;  // between mappings and the host: no page of a mapping is touched
  bool no_peers = false;              // no GPU can use another's memory, as without NVLink on many machines; copies go through the host
  int nvlink_group = 0;               // so many GPUs after each other are joined by NVLink, in NVML alone; 0: none
  std::string faults;                 // see README.md
};

const Config& config();

// FACTS of one real card, as ratios to the speed of a pinned copy in one direction; they carry over to other cards.
namespace ratio {
inline constexpr double kPageableToDevice = 9.6 / 55.4;
inline constexpr double kPageableToHost = 18.8 / 55.3;
inline constexpr double kBothDirections = 101.0 / (55.4 + 55.3);  // each direction's speed while the other one is busy too
inline constexpr double kDeviceMemory = 3950.0 / 55.4;            // a kernel that reads memory
inline constexpr double kManagedFault = 14.0 / 55.4;              // fault in on demand
inline constexpr double kManagedPrefetch = 51.0 / 55.4;
inline constexpr double kManagedEvictFirst = 4.4 / 55.3;
inline constexpr double kManagedEvictAgain = 22.6 / 55.3;
// Two saturating processes lose a tenth of the GPU to the driver's time-slicing, whatever their kernels' length; a single hand-off
// costs about 120 us.
inline constexpr double kSwitchLoss = 0.10;
inline constexpr double kSwitchMaxNs = 150e3;
}  // namespace ratio

// CLOCK_MONOTONIC, the same in every process.
uint64_t now_ns();
// Sleeps until that instant of now_ns(). Never spins.
void sleep_until_ns(uint64_t instant_ns);

}  // namespace simgpu
