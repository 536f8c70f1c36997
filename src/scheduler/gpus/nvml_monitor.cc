#include "scheduler/gpus/nvml_monitor.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace nvshare::scheduler {
namespace {

constexpr size_t kProcessesMax = 1024;
constexpr size_t kMigDevicesMax = 64;  // of one GPU; there are seven at most today
// No sample for so long: nothing ran, but for the time that the driver takes to show one.
constexpr uint64_t kNothingRanUs = 3'000'000;
constexpr uint64_t kShownLateUs = 1'000'000;
// What happened before that is nobody's question any more.
constexpr uint64_t kUseForgottenUs = 10'000'000;

uint64_t wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

bool contains(const std::vector<GpuUuid>& gpus, const GpuUuid& uuid) { return std::find(gpus.begin(), gpus.end(), uuid) != gpus.end(); }

// Signals are the loop's business.
std::thread start_without_signals(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

NvmlMonitor::NvmlMonitor(cuda::Nvml nvml, EventLoop& loop, Callback on_samples, ListCallback on_listed)
    : nvml_(std::move(nvml)),
      loop_(loop),
      on_samples_(std::make_shared<Callback>(std::move(on_samples))),
      on_listed_(std::make_shared<ListCallback>(std::move(on_listed))) {
  find_gpus();
  thread_ = start_without_signals([this] { run(); });
}

NvmlMonitor::~NvmlMonitor() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
  *on_samples_ = nullptr;
  *on_listed_ = nullptr;
}

void NvmlMonitor::list_mig_devices() {
  {
    Lock lock(mutex_);
    list_ = look_now_ = true;
  }
  changed_.notify_one();
}

void NvmlMonitor::watch(std::vector<GpuUuid> gpus, std::vector<GpuUuid> shared, int64_t interval_ns) {
  {
    Lock lock(mutex_);
    look_now_ = look_now_ || interval_ns < interval_ns_ || gpus != watched_;
    watched_ = std::move(gpus);
    shared_ = std::move(shared);
    interval_ns_ = interval_ns;
  }
  changed_.notify_one();
}

void NvmlMonitor::find_gpus() {
  Result<uint32_t> count = nvml_.device_count();
  for (uint32_t i = 0; count && i < *count; ++i) {
    Result<cuda::NvmlDevice> handle = nvml_.device_by_index(i);
    if (!handle) continue;
    Device device;
    device.handle = *handle;
    Result<cuda::NvmlMemory> memory = nvml_.memory_of(*handle);
    if (!memory || !nvml_.uuid_of(*handle, device.gpu.uuid)) continue;
    device.gpu.total = static_cast<int64_t>(memory->total - memory->reserved);
    char name[96] = {};
    if (nvml_.name_of(*handle, name)) device.gpu.name = name;
    gpus_.push_back(device.gpu);
    devices_.push_back(std::move(device));
  }
}

void NvmlMonitor::run() {
  Lock lock(mutex_);
  while (!stop_) {
    if (std::exchange(list_, false)) {
      lock.unlock();
      list();
      lock.lock();
      continue;
    }
    if (watched_.empty()) {
      changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return stop_ || list_ || !watched_.empty(); });
      continue;
    }
    look_now_ = false;
    const std::vector<GpuUuid> wanted = watched_;
    const std::vector<GpuUuid> shared = shared_;
    lock.unlock();
    std::vector<GpuSample> samples;
    for (Device& device : devices_) {
      GpuSample sample;
      if (!contains(wanted, device.gpu.uuid)) continue;
      if (!look_at(device, &sample)) continue;
      if (contains(shared, device.gpu.uuid)) sample.use = look_at_use(device);
      samples.push_back(std::move(sample));
    }
    if (!samples.empty()) {
      loop_.post([callback = on_samples_, samples = std::move(samples)] {
        if (*callback) (*callback)(samples);
      });
    }
    lock.lock();
    changed_.wait_for(mutex_, interval_ns_, [this]() REQUIRES(mutex_) { return stop_ || look_now_; });
  }
}

void NvmlMonitor::list() const {
  std::vector<GpuUuid> found;
  for (const Device& device : devices_) {
    std::array<cuda::NvmlDevice, kMigDevicesMax> parts{};
    const size_t count = nvml_.mig_devices_of(device.handle, parts);
    for (size_t i = 0; i < count; ++i) {
      GpuUuid uuid{};
      if (nvml_.uuid_of(parts[i], uuid)) found.push_back(uuid);
    }
  }
  loop_.post([callback = on_listed_, found = std::move(found)] {
    if (*callback) (*callback)(found);
  });
}

std::optional<UseSample> NvmlMonitor::look_at_use(Device& device) const {
  const int64_t asked_at = monotonic_ns();
  if (asked_at - device.use_asked_at < UtilizationMonitor::kInterval) return std::nullopt;
  device.use_asked_at = asked_at;
  const uint64_t now_us = wall_clock_us();
  // Also after somebody has set the clock.
  if (device.use_known_us > now_us || now_us - device.use_known_us > kUseForgottenUs) device.use_known_us = now_us - kShownLateUs;

  UseSample sample;
  std::vector<cuda::NvmlProcessUse> processes(kProcessesMax);
  Result<size_t> count = nvml_.process_use_of(device.handle, device.use_known_us, processes);
  if (!count) {
    sample.unknown = count.error().text;
    return sample;
  }
  uint64_t until_us = 0;
  for (size_t i = 0; i < *count; ++i) {
    sample.processes.push_back({static_cast<int32_t>(processes[i].pid), processes[i].sm_percent});
    until_us = std::max(until_us, std::min(processes[i].time_us, now_us));
  }
  if (*count == 0 && now_us - device.use_known_us < kNothingRanUs) return std::nullopt;
  if (*count == 0) until_us = now_us - kShownLateUs;
  if (until_us <= device.use_known_us) return std::nullopt;
  sample.span = static_cast<int64_t>(until_us - device.use_known_us) * 1000;
  device.use_known_us = until_us;
  return sample;
}

bool NvmlMonitor::look_at(const Device& device, GpuSample* sample) const {
  sample->uuid = device.gpu.uuid;
  sample->taken_at = monotonic_ns();
  std::vector<cuda::NvmlProcess> processes(kProcessesMax);
  Result<cuda::NvmlMemory> before = nvml_.memory_of(device.handle);
  Result<size_t> count = nvml_.processes_of(device.handle, processes);
  Result<cuda::NvmlMemory> after = nvml_.memory_of(device.handle);
  if (!before || !count || !after) return false;
  sample->used_before = static_cast<int64_t>(before->used);
  sample->used_after = static_cast<int64_t>(after->used);
  for (size_t i = 0; i < *count; ++i) {
    sample->processes.push_back({static_cast<int32_t>(processes[i].pid), static_cast<int64_t>(processes[i].used)});
  }
  return true;
}

}  // namespace nvshare::scheduler
