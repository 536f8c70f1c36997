// The GPUs, as all processes see them: a file in /dev/shm that holds capacity, who uses how much, what the engines are busy with, which
// managed pages are resident, and the faults to inject. Used by both libraries (libcuda.so.1 and libnvidia-ml.so.1).
//
// Everything below SharedState::mutex is guarded by it, unless it is atomic. The mutex is robust: when its owner was killed the next one
// goes on, which is safe because each number has a single place: totals are computed from the slots, never stored.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "simgpu/visible.h"

namespace simgpu {

inline constexpr int kMaxDevices = 8;
inline constexpr int kMaxProcesses = 2048;
inline constexpr uint64_t kPageBytes = 2u << 20;        // physical granularity, and the unit in which managed memory moves
inline constexpr uint64_t kPoolPieceBytes = 32u << 20;  // in which a driver maps pools' memory; no block that fits crosses two
inline constexpr int kMaxFrames = 32768;                // of managed memory: 64 GiB

enum class Engine : int { kCompute, kToDevice, kToHost };
inline constexpr int kEngines = 3;

enum class Charge : int { kContext, kPlain, kPhysical, kManaged };  // kPhysical: cuMemCreate
inline constexpr int kCharges = 4;

// The engine is busy until free_at_ns. Work reserves the next interval and sleeps until that has passed.
struct EngineState {
  uint64_t free_at_ns = 0;
  uint64_t slice_start_ns = 0;  // since when owner_slot has had it
  uint64_t busy_ns = 0;         // in total
  int32_t owner_slot = -1;
};

struct ManagedFrame {
  uint64_t page = 0;  // address / kPageBytes in the owner's address space; 0: free
  uint64_t last_use = 0;
  int32_t slot = -1;
  uint32_t evicted_before = 0;
};

struct DeviceState {
  std::array<EngineState, kEngines> engines;
  uint64_t use_clock = 0;
  int32_t frames_in_use = 0;
  uint64_t released_at_ns = 0;  // when memory was last given back
  std::array<ManagedFrame, kMaxFrames> frames;
};

struct ProcessSlot {
  int32_t pid = 0;  // 0: free
  uint64_t start_time = 0;
  uint64_t seen_dead_ns = 0;
  std::array<std::array<uint64_t, kCharges>, kMaxDevices> bytes;
  std::array<uint64_t, kMaxDevices> compute_ns;  // reserved so far
  // Its latest piece of work on each compute engine, which may lie ahead.
  std::array<uint64_t, kMaxDevices> compute_begin_ns, compute_end_ns;
};

// Rates are in parts per million.
struct Faults {
  std::atomic<uint32_t> alloc_oom, context_oom, create_oom, driver_oom, copy_fail, register_fail, unmap_fail;
  std::atomic<uint32_t> copy_breaks;  // once
  std::atomic<uint32_t> create_oom_moment_ms;
  std::atomic<uint32_t> hang_kernel, device_lost, blind_hash;
  std::atomic<uint32_t> xid;  // that the driver reports of the first GPU, once
};

struct SharedState {
  uint64_t magic;
  uint64_t size;
  pthread_mutex_t mutex;
  int32_t device_count;
  uint64_t memory_bytes;
  std::array<uint8_t, 16> uuid_seed;
  std::atomic<uint64_t> submissions;
  std::atomic<uint64_t> violations;
  std::atomic<uint64_t> faults_seen;
  Faults faults;
  uint64_t checked_alive_ns;
  std::array<ProcessSlot, kMaxProcesses> slots;
  std::array<DeviceState, kMaxDevices> devices;
};

struct MemoryUse {
  uint64_t used = 0;  // by everybody
  uint64_t total = 0;
};

struct ProcessUse {
  int pid = 0;
  uint64_t bytes = 0;
  uint64_t compute_ns = 0;  // that its kernels have run
};

// The shared state, mapped. Thread-safe. One a process, never destroyed. Devices go by this process's numbers, from 0 to device_count() -
// 1, for those that it sees (visible.h).
class Machine {
 public:
  static Machine& get();

  int device_count() const { return static_cast<int>(visible_.size()); }
  // The machine's own number of a device, by which processes name it to each other.
  int machine_number(int device) const { return visible_[static_cast<size_t>(device)]; }
  // -1: this process does not see it.
  int device_of(uint64_t machine_number) const;
  Uuid uuid(int device) const { return uuids_[static_cast<size_t>(machine_number(device))]; }

  // Takes a slot for the calling process; -1 when all are taken.
  int register_process();

  // Charges memory of a device to the slot; evicts managed pages when that makes room. False: out of memory.
  bool charge(int device, int slot, Charge kind, uint64_t bytes);
  void release(int device, int slot, Charge kind, uint64_t bytes);

  MemoryUse memory(int device);
  std::vector<ProcessUse> processes(int device);
  // Time that an engine was busy, since the file was made.
  uint64_t busy_ns(int device, Engine engine);

  // Reserves an engine for duration_ns (not yet scaled), not before ready_ns, and returns the end of the interval. The caller sleeps.
  uint64_t reserve(int device, int slot, Engine engine, uint64_t ready_ns, double duration_ns);

  struct Residency {
    double ns = 0;  // what the movement takes; reserve() it
    double evict_ns = 0;
    uint64_t moved_pages = 0;
  };
  // Makes managed pages [first, first+count) of a slot resident on a device (what finds no room is used over the link) and marks them used.
  // prefetch: at the speed of a prefetch, else of page faults. evicted_before(page) of the caller's own is true when it has been evicted.
  Residency make_resident(int device, int slot, uint64_t first_page, uint64_t count, bool prefetch,
                          const std::vector<bool>& evicted_before);
  // Takes managed pages off all devices; `free`: without copying them out. For each the caller learns whether it was resident.
  Residency make_absent(int slot, uint64_t first_page, uint64_t count, bool free, std::vector<bool>* was_resident);
  uint64_t resident_bytes(int slot, uint64_t first_page, uint64_t count);

  uint64_t released_at_ns(int device);
  // Gives back what dead processes held, as far as their delay has passed.
  void reclaim();

  Faults& faults() { return state_->faults; }
  SharedState& shared() { return *state_; }

 private:
  class Locked;
  explicit Machine(SharedState* state) : state_(state) {}
  void look_at_environment();
  DeviceState& state_of(int device) { return state_->devices[static_cast<size_t>(machine_number(device))]; }
  // Below, devices go by the machine's numbers.
  uint64_t used_locked(int device) const;
  // As many as fit on the device.
  std::span<ManagedFrame> frames(int device) {
    return std::span(state_->devices[static_cast<size_t>(device)].frames).first(state_->memory_bytes / kPageBytes);
  }
  void reclaim_locked(uint64_t max_age_ns);
  void release_frames_locked(int slot);
  // Evicts least recently used managed pages until `bytes` fit. Adds what that takes to evict_ns. False: there are not enough.
  bool make_room_locked(int device, uint64_t bytes, double* evict_ns);
  void drop_frame_locked(int device, ManagedFrame& frame);

  SharedState* state_;
  std::vector<Uuid> uuids_;   // of all devices of the machine
  std::vector<int> visible_;  // the machine's numbers of those that this process sees
};

// Names a fault and its strength in Faults ("alloc_oom:0.1,hang_kernel"); an unknown word is refused with false.
bool set_faults(Faults& faults, const std::string& text);

}  // namespace simgpu
