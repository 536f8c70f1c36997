#include "simgpu/device_state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "simgpu/config.h"

namespace simgpu {
namespace {

constexpr uint64_t kMagic = 0x73696d6770753036;  // changes with the layout
// Bringing an engine's interval forward by this much is allowed: it makes up for sleeping too long, not for slow work.
constexpr uint64_t kSlackNs = 2000000;
constexpr uint64_t kAliveCheckNs = 5000000;

[[noreturn]] void die(const char* what, const std::string& path) {
  std::fprintf(stderr, "simgpu: cannot %s %s: %s; set SIMGPU_STATE to a path that can be written\n", what, path.c_str(), strerror(errno));
  std::abort();
}

// FNV-1a over the path: the GPUs of one state file keep their identity.
std::array<uint8_t, 16> seed_of(const std::string& path) {
  std::array<uint8_t, 16> seed{};
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < seed.size(); ++i) {
    for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c) ^ i) * 0x100000001b3;
    seed[i] = static_cast<uint8_t>(hash >> 24);
  }
  return seed;
}

// Fills a file of zeros.
void initialise(SharedState* state, const Config& settings) {
  state->size = sizeof(SharedState);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&state->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  state->device_count = settings.device_count;
  state->memory_bytes = settings.memory_bytes;
  state->uuid_seed = seed_of(settings.state_path);
  state->magic = kMagic;
}

SharedState* map(int fd, const std::string& path) {
  void* address = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) die("map", path);
  return static_cast<SharedState*>(address);
}

// The first process makes the file complete under another name and links it: nobody ever sees half of it.
SharedState* create(const Config& settings) {
  const std::string temporary = settings.state_path + "." + std::to_string(getpid());
  const int fd = open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) die("create", temporary);
  if (ftruncate(fd, sizeof(SharedState)) != 0) die("size", temporary);
  SharedState* state = map(fd, temporary);
  initialise(state, settings);
  const bool won = link(temporary.c_str(), settings.state_path.c_str()) == 0;
  if (!won && errno != EEXIST) die("link", settings.state_path);
  unlink(temporary.c_str());
  close(fd);
  if (won) return state;
  munmap(state, sizeof(SharedState));
  return nullptr;
}

SharedState* attach(const Config& settings) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int fd = open(settings.state_path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      if (errno != ENOENT) die("open", settings.state_path);
      if (SharedState* state = create(settings)) return state;
      continue;
    }
    struct stat info {};
    fstat(fd, &info);
    uint64_t magic = 0;
    if (info.st_size == sizeof(SharedState) && pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == kMagic) {
      SharedState* state = map(fd, settings.state_path);
      close(fd);
      return state;
    }
    close(fd);
    unlink(settings.state_path.c_str());  // left by another version
  }
  die("agree on", settings.state_path);
}

// When the process started, in clock ticks since boot; 0: there is no such process, or only a zombie whose memory is gone.
uint64_t start_time_of(int pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char buffer[1024];
  const ssize_t count = read(fd, buffer, sizeof buffer - 1);
  close(fd);
  if (count <= 0) return 0;
  buffer[count] = '\0';
  const char* at = strrchr(buffer, ')');  // the name may hold anything, also brackets
  if (at == nullptr || at[2] == 'Z' || at[2] == 'X') return 0;
  at += 2;
  for (int field = 3; field < 22; ++field) {
    at = strchr(at, ' ');
    if (at == nullptr) return 0;
    ++at;
  }
  return strtoull(at, nullptr, 10);
}

double to_ns(double bytes, double ratio) { return bytes / (config().link_bytes_per_s * ratio) * 1e9; }

}  // namespace

// Holds the shared mutex.
class Machine::Locked {
 public:
  explicit Locked(Machine& machine) : state_(*machine.state_) {
    const int result = pthread_mutex_lock(&state_.mutex);
    if (result == EOWNERDEAD) {
      pthread_mutex_consistent(&state_.mutex);
      recount();
    } else if (result != 0) {
      std::fprintf(stderr, "simgpu: cannot lock the shared state: %s\n", strerror(result));
      std::abort();
    }
  }
  ~Locked() { pthread_mutex_unlock(&state_.mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  // The only figures that are kept twice: how much managed memory is resident.
  void recount() {
    for (int device = 0; device < kMaxDevices; ++device) {
      DeviceState& gpu = state_.devices[static_cast<size_t>(device)];
      for (ProcessSlot& slot : state_.slots) slot.bytes[static_cast<size_t>(device)][static_cast<size_t>(Charge::kManaged)] = 0;
      gpu.frames_in_use = 0;
      for (const ManagedFrame& frame : gpu.frames) {
        if (frame.page == 0) continue;
        ++gpu.frames_in_use;
        state_.slots[static_cast<size_t>(frame.slot)].bytes[static_cast<size_t>(device)][static_cast<size_t>(Charge::kManaged)] +=
            kPageBytes;
      }
    }
  }
  SharedState& state_;
};

Machine& Machine::get() {
  static Machine* const kMachine = [] {
    const Config& settings = config();
    auto* machine = new Machine(attach(settings));
    Locked lock(*machine);
    machine->reclaim_locked(0);
    SharedState& state = *machine->state_;
    const bool in_use = std::any_of(state.slots.begin(), state.slots.end(), [](const ProcessSlot& slot) { return slot.pid != 0; });
    if (!in_use) {  // nobody is there: this process's settings hold
      state.device_count = settings.device_count;
      state.memory_bytes = settings.memory_bytes;
    }
    machine->look_at_environment();
    return machine;
  }();
  return *kMachine;
}

void Machine::look_at_environment() {
  for (int i = 0; i < state_->device_count; ++i) {
    Uuid uuid{state_->uuid_seed};
    uuid.bytes[15] = static_cast<uint8_t>(uuid.bytes[15] + i);
    uuids_.push_back(uuid);
  }
  const char* given = std::getenv("NVIDIA_VISIBLE_DEVICES");
  visible_ = given_by_runtime(given == nullptr ? "" : given, uuids_);
  if (is_cuda()) visible_ = chosen_by_program(std::getenv("CUDA_VISIBLE_DEVICES"), visible_, uuids_);
}

int Machine::device_of(uint64_t machine_number) const {
  const auto found = std::find(visible_.begin(), visible_.end(), static_cast<int>(machine_number));
  return found == visible_.end() ? -1 : static_cast<int>(found - visible_.begin());
}

int Machine::register_process() {
  Locked lock(*this);
  reclaim_locked(0);
  for (int i = 0; i < kMaxProcesses; ++i) {
    ProcessSlot& slot = state_->slots[static_cast<size_t>(i)];
    if (slot.pid != 0) continue;
    slot = ProcessSlot{};
    slot.start_time = start_time_of(getpid());
    slot.pid = getpid();
    return i;
  }
  return -1;
}

uint64_t Machine::used_locked(int device) const {
  uint64_t used = 0;
  for (const ProcessSlot& slot : state_->slots) {
    if (slot.pid == 0) continue;
    for (const uint64_t bytes : slot.bytes[static_cast<size_t>(device)]) used += bytes;
  }
  return used;
}

void Machine::drop_frame_locked(int device, ManagedFrame& frame) {
  state_->slots[static_cast<size_t>(frame.slot)].bytes[static_cast<size_t>(device)][static_cast<size_t>(Charge::kManaged)] -= kPageBytes;
  --state_->devices[static_cast<size_t>(device)].frames_in_use;
  frame = ManagedFrame{};
}

void Machine::release_frames_locked(int slot) {
  for (int device = 0; device < state_->device_count; ++device) {
    DeviceState& gpu = state_->devices[static_cast<size_t>(device)];
    if (gpu.frames_in_use == 0) continue;
    for (ManagedFrame& frame : frames(device)) {
      if (frame.page != 0 && frame.slot == slot) drop_frame_locked(device, frame);
    }
  }
}

void Machine::reclaim_locked(uint64_t max_age_ns) {
  const uint64_t now = now_ns();
  if (now - state_->checked_alive_ns < max_age_ns) return;
  state_->checked_alive_ns = now;
  for (int i = 0; i < kMaxProcesses; ++i) {
    ProcessSlot& slot = state_->slots[static_cast<size_t>(i)];
    if (slot.pid == 0) continue;
    if (slot.seen_dead_ns == 0) {
      if (start_time_of(slot.pid) == slot.start_time) continue;
      slot.seen_dead_ns = now;
    }
    if (now - slot.seen_dead_ns < config().reclaim_delay_ns) continue;
    release_frames_locked(i);
    slot = ProcessSlot{};
  }
}

void Machine::reclaim() {
  Locked lock(*this);
  reclaim_locked(kAliveCheckNs);
}

bool Machine::make_room_locked(int device, uint64_t bytes, double* evict_ns) {
  DeviceState& gpu = state_->devices[static_cast<size_t>(device)];
  while (used_locked(device) + bytes > state_->memory_bytes) {
    if (gpu.frames_in_use == 0) return false;
    ManagedFrame* oldest = nullptr;
    for (ManagedFrame& frame : frames(device)) {
      if (frame.page != 0 && (oldest == nullptr || frame.last_use < oldest->last_use)) oldest = &frame;
    }
    if (oldest == nullptr) return false;
    *evict_ns += to_ns(kPageBytes, oldest->evicted_before != 0 ? ratio::kManagedEvictAgain : ratio::kManagedEvictFirst);
    drop_frame_locked(device, *oldest);
  }
  return true;
}

bool Machine::charge(int device, int slot, Charge kind, uint64_t bytes) {
  double evict_ns = 0;
  {
    Locked lock(*this);
    const int gpu = machine_number(device);
    if (used_locked(gpu) + bytes > state_->memory_bytes) reclaim_locked(0);
    // Do not push managed pages out for something that will not fit anyhow.
    const uint64_t movable = static_cast<uint64_t>(state_of(device).frames_in_use) * kPageBytes;
    if (used_locked(gpu) - movable + bytes > state_->memory_bytes) return false;
    if (!make_room_locked(gpu, bytes, &evict_ns)) return false;
    state_->slots[static_cast<size_t>(slot)].bytes[static_cast<size_t>(gpu)][static_cast<size_t>(kind)] += bytes;
  }
  if (evict_ns > 0) sleep_until_ns(reserve(device, slot, Engine::kToHost, now_ns(), evict_ns));
  return true;
}

void Machine::release(int device, int slot, Charge kind, uint64_t bytes) {
  Locked lock(*this);
  state_->slots[static_cast<size_t>(slot)].bytes[static_cast<size_t>(machine_number(device))][static_cast<size_t>(kind)] -= bytes;
  state_of(device).released_at_ns = now_ns();
}

uint64_t Machine::released_at_ns(int device) {
  Locked lock(*this);
  return state_of(device).released_at_ns;
}

MemoryUse Machine::memory(int device) {
  Locked lock(*this);
  reclaim_locked(kAliveCheckNs);
  return {std::min(used_locked(machine_number(device)), state_->memory_bytes), state_->memory_bytes};
}

std::vector<ProcessUse> Machine::processes(int device) {
  Locked lock(*this);
  reclaim_locked(kAliveCheckNs);
  std::vector<ProcessUse> result;
  for (const ProcessSlot& slot : state_->slots) {
    const auto& bytes = slot.bytes[static_cast<size_t>(machine_number(device))];
    if (slot.pid == 0 || bytes[static_cast<size_t>(Charge::kContext)] == 0) continue;
    const auto on = static_cast<size_t>(machine_number(device));
    const uint64_t ran_until = std::max(now_ns(), slot.compute_begin_ns[on]);
    const uint64_t ahead = slot.compute_end_ns[on] - std::min(slot.compute_end_ns[on], ran_until);
    ProcessUse use{slot.pid, 0, slot.compute_ns[on] - std::min(slot.compute_ns[on], ahead)};
    for (const uint64_t part : bytes) use.bytes += part;
    result.push_back(use);
  }
  return result;
}

uint64_t Machine::busy_ns(int device, Engine engine) {
  Locked lock(*this);
  return state_of(device).engines[static_cast<size_t>(engine)].busy_ns;
}

uint64_t Machine::reserve(int device, int slot, Engine engine, uint64_t ready_ns, double duration_ns) {
  const double scale = config().time_scale;
  Locked lock(*this);
  DeviceState& gpu = state_of(device);
  EngineState& unit = gpu.engines[static_cast<size_t>(engine)];
  const uint64_t now = now_ns();
  uint64_t start = std::max({ready_ns, unit.free_at_ns, now - kSlackNs});
  if (engine == Engine::kCompute && unit.owner_slot != slot) {
    if (unit.owner_slot >= 0 && unit.free_at_ns + kSlackNs > start) {
      const double used = static_cast<double>(unit.free_at_ns - std::min(unit.free_at_ns, unit.slice_start_ns));
      start += static_cast<uint64_t>(std::min(used * ratio::kSwitchLoss, ratio::kSwitchMaxNs * scale));
    }
    unit.owner_slot = slot;
    unit.slice_start_ns = start;
  }
  if (engine != Engine::kCompute) {
    const auto other = engine == Engine::kToDevice ? Engine::kToHost : Engine::kToDevice;
    if (gpu.engines[static_cast<size_t>(other)].free_at_ns > start) duration_ns /= ratio::kBothDirections;
  }
  const auto duration = static_cast<uint64_t>(duration_ns * scale);
  unit.free_at_ns = start + duration;
  unit.busy_ns += duration;
  if (engine == Engine::kCompute) {
    ProcessSlot& process = state_->slots[static_cast<size_t>(slot)];
    const auto on = static_cast<size_t>(machine_number(device));
    process.compute_ns[on] += duration;
    process.compute_begin_ns[on] = start;
    process.compute_end_ns[on] = unit.free_at_ns;
  }
  return unit.free_at_ns;
}

Machine::Residency Machine::make_resident(int device, int slot, uint64_t first_page, uint64_t count, bool prefetch,
                                          const std::vector<bool>& evicted_before) {
  Residency result;
  Locked lock(*this);
  DeviceState& gpu = state_of(device);
  std::vector<bool> present(count, false);
  for (ManagedFrame& frame : frames(machine_number(device))) {
    if (frame.page < first_page || frame.page >= first_page + count || frame.slot != slot) continue;
    frame.last_use = ++gpu.use_clock;
    present[frame.page - first_page] = true;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (present[i]) continue;
    result.ns += to_ns(kPageBytes, prefetch ? ratio::kManagedPrefetch : ratio::kManagedFault);
    ++result.moved_pages;
    if (!make_room_locked(machine_number(device), kPageBytes, &result.evict_ns)) continue;  // used where it is, over the link
    const auto free_frame = std::find_if(frames(machine_number(device)).begin(), frames(machine_number(device)).end(),
                                         [](const ManagedFrame& f) { return f.page == 0; });
    if (free_frame == frames(machine_number(device)).end()) continue;
    *free_frame = ManagedFrame{first_page + i, ++gpu.use_clock, slot, evicted_before[i] ? 1u : 0u};
    ++gpu.frames_in_use;
    state_->slots[static_cast<size_t>(slot)].bytes[static_cast<size_t>(machine_number(device))][static_cast<size_t>(Charge::kManaged)] +=
        kPageBytes;
  }
  return result;
}

Machine::Residency Machine::make_absent(int slot, uint64_t first_page, uint64_t count, bool free, std::vector<bool>* was_resident) {
  Residency result;
  was_resident->assign(count, false);
  Locked lock(*this);
  for (int device = 0; device < state_->device_count; ++device) {
    for (ManagedFrame& frame : frames(device)) {
      if (frame.page < first_page || frame.page >= first_page + count || frame.slot != slot) continue;
      (*was_resident)[frame.page - first_page] = true;
      if (!free) result.evict_ns += to_ns(kPageBytes, frame.evicted_before != 0 ? ratio::kManagedEvictAgain : ratio::kManagedEvictFirst);
      ++result.moved_pages;
      drop_frame_locked(device, frame);
    }
  }
  return result;
}

uint64_t Machine::resident_bytes(int slot, uint64_t first_page, uint64_t count) {
  Locked lock(*this);
  uint64_t bytes = 0;
  for (int device = 0; device < state_->device_count; ++device) {
    for (const ManagedFrame& frame : frames(device)) {
      if (frame.page >= first_page && frame.page < first_page + count && frame.slot == slot) bytes += kPageBytes;
    }
  }
  return bytes;
}

bool set_faults(Faults& faults, const std::string& text) {
  struct Known {
    const char* name;
    std::atomic<uint32_t>* value;
    double scale;
  };
  const std::array<Known, 13> known{{{"alloc_oom", &faults.alloc_oom, 1e6},
                                     {"context_oom", &faults.context_oom, 1e6},
                                     {"create_oom", &faults.create_oom, 1e6},
                                     {"driver_oom", &faults.driver_oom, 1e6},
                                     {"copy_fail", &faults.copy_fail, 1e6},
                                     {"register_fail", &faults.register_fail, 1e6},
                                     {"unmap_fail", &faults.unmap_fail, 1e6},
                                     {"create_oom_moment", &faults.create_oom_moment_ms, 1},
                                     {"copy_breaks", &faults.copy_breaks, 1},
                                     {"hang_kernel", &faults.hang_kernel, 1},
                                     {"device_lost", &faults.device_lost, 1},
                                     {"blind_hash", &faults.blind_hash, 1},
                                     {"xid", &faults.xid, 1}}};
  for (const Known& fault : known) fault.value->store(0);
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    const size_t colon = std::min(word.find(':'), word.size());
    const auto fault = std::find_if(known.begin(), known.end(), [&](const Known& k) { return word.compare(0, colon, k.name) == 0; });
    if (fault == known.end()) return false;
    const double value = colon < word.size() ? std::strtod(word.c_str() + colon + 1, nullptr) : 1;
    fault->value->store(static_cast<uint32_t>(value * fault->scale));
  }
  syscall(SYS_futex, &faults.xid, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);  // NVML waits for it
  return true;
}

}  // namespace simgpu
