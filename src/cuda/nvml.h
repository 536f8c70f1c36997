// NVML, as far as we need it: which GPUs there are, and who uses how much of their memory. Loaded with dlopen, so that nothing needs
// NVML to be there; every function of it is optional, and what cannot be known is said to be unknown.
//
// Declarations follow NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api), versions R418 to R580. Thread-safe, as NVML is.
// Never unloads the library: drivers do not survive that reliably. Allocates once, in load(); no exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"

namespace nvshare::cuda {

using NvmlDevice = void*;  // nvmlDevice_t; valid as long as the Nvml lives

struct NvmlMemory {
  uint64_t total = 0;     // the whole GPU, `reserved` included
  uint64_t used = 0;      // allocated by anyone; includes `reserved` only if that is unknown
  uint64_t reserved = 0;  // set aside by driver and firmware; 0 if unknown
};

struct NvmlProcess {
  uint32_t pid = 0;  // in the machine's first PID namespace, or as the driver maps it
  uint64_t used = 0;
};

// How much of the time kernels of a process ran, as the driver samples it: an approximation in whole percent.
struct NvmlProcessUse {
  uint32_t pid = 0;      // as NvmlProcess::pid
  uint64_t time_us = 0;  // of its latest sample, CLOCK_REALTIME microseconds
  uint32_t sm_percent = 0;
};

// What the driver reports of a GPU (an "XID").
struct NvmlFault {
  NvmlDevice device = nullptr;
  uint64_t xid = 0;
};

struct NvmlApi;  // nvml.cc

class Nvml {
 public:
  // Loads and initialises the library. An error says what is missing; that is no fault, many machines have none.
  static Result<Nvml> load(const char* library = "libnvidia-ml.so.1");
  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  Result<uint32_t> device_count() const;
  Result<NvmlDevice> device_by_index(uint32_t index) const;
  // As cuDeviceGetUuid gives it.
  Result<NvmlDevice> device_by_uuid(std::span<const uint8_t, 16> uuid) const;

  // The same by its text, which may be that of a MIG device: "MIG-...".
  Result<NvmlDevice> device_by_uuid(const char* text) const;

  Result<void> uuid_of(NvmlDevice device, std::span<uint8_t, 16> uuid) const;
  // As NVML writes it, NUL-terminated: "GPU-..." or "MIG-...".
  Result<void> uuid_text_of(NvmlDevice device, std::span<char> text) const;

  // Whether the GPU is divided into MIG devices now, so that no program can use it as a whole. False where the driver does not know MIG.
  bool is_divided(NvmlDevice gpu) const;
  // Fills `devices` with the GPU's MIG devices; returns how many, at most as many as fit.
  size_t mig_devices_of(NvmlDevice gpu, std::span<NvmlDevice> devices) const;
  // The GPU that a MIG device is of; of anything else, itself.
  NvmlDevice gpu_of(NvmlDevice device) const;
  // NUL-terminated, cut to fit.
  Result<void> name_of(NvmlDevice device, std::span<char> name) const;
  // "Hopper", as NVIDIA calls it; an error where the driver does not tell, or names one that is not known here.
  Result<const char*> architecture_of(NvmlDevice device) const;
  // Of the driver, "535.183.01", NUL-terminated, cut to fit; and the newest CUDA that it serves, 12040 for 12.4.
  Result<void> driver_version(std::span<char> version) const;
  Result<int> cuda_version() const;
  Result<NvmlMemory> memory_of(NvmlDevice device) const;
  // Fills `processes` with every process that has memory there, computing or drawing, each pid once; returns how many. Processes whose
  // use NVML does not tell are left out. An error if there are more than fit.
  Result<size_t> processes_of(NvmlDevice device, std::span<NvmlProcess> processes) const;
  // The processes whose kernels ran since `since_us` (CLOCK_REALTIME microseconds): one entry each, the average of the driver's samples
  // with a later timestamp. The driver takes a sample every 1/6 s to 1 s and shows it some time later. Fills `processes` and returns how
  // many; 0 where nothing ran, or no sample was taken since. Entries that cannot be (drivers are known to return some that were never
  // written) are left out. An error where the driver does not tell: MIG, GPUs before Maxwell.
  Result<size_t> process_use_of(NvmlDevice device, uint64_t since_us, std::span<NvmlProcessUse> processes) const;
  // "00000000:17:00.0", domain first, as NVML writes it.
  Result<void> pci_address_of(NvmlDevice device, std::span<char> address) const;

  // Whether NVLink joins two GPUs, by links of their own or through switches. An error where the driver does not tell.
  Result<bool> nvlink_joins(NvmlDevice one, NvmlDevice other) const;

 private:
  friend class NvmlFaults;
  explicit Nvml(const NvmlApi* api) : api_(api) {}
  const NvmlApi* api_;  // null after a move
};

// What the driver reports of some GPUs from its creation on. It ends before its Nvml does.
class NvmlFaults {
 public:
  // GPUs that cannot tell are left out; an error if none can.
  static Result<NvmlFaults> watch(const Nvml& nvml, std::span<const NvmlDevice> gpus);
  NvmlFaults(NvmlFaults&& other) noexcept;
  NvmlFaults& operator=(NvmlFaults&&) = delete;
  ~NvmlFaults();

  // The next one; nothing after so many milliseconds. One thread at a time.
  Result<std::optional<NvmlFault>> wait(uint32_t timeout_ms) const;

 private:
  NvmlFaults(const NvmlApi* api, void* events) : api_(api), events_(events) {}
  const NvmlApi* api_;
  void* events_;  // nvmlEventSet_t; null after a move
};

// "GPU-01234567-89ab-cdef-0123-456789abcdef", NUL included.
inline constexpr size_t kUuidTextBytes = 41;
void format_uuid(std::span<const uint8_t, 16> uuid, std::span<char, kUuidTextBytes> text);
Result<void> parse_uuid(const char* text, std::span<uint8_t, 16> uuid);

}  // namespace nvshare::cuda
