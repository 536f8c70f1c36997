// What `nvsharectl doctor` looks at, as plain values, so that its judgement is tested with made-up ones. An empty optional or text: not
// known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nvshare::cli::doctor {

struct DeviceFile {
  std::string path;
  bool there = false;
  bool usable = false;  // for reading and writing, by this user
};

struct GpuFacts {
  int index = 0;
  std::string name;
  std::string uuid;
  std::optional<bool> persistence;
  std::optional<bool> mig;
  int link_generation = 0;  // of PCIe now, and at most; 0: not known
  int link_generation_max = 0;
  int link_width = 0;
  int link_width_max = 0;
  int64_t memory = 0;  // bytes
};

// A GPU as the kernel sees it on the PCI bus.
struct PciGpu {
  std::string address;    // "0000:3b:00.0"
  std::string iommu;      // type of its IOMMU group: "identity", "DMA", "DMA-FQ"; empty: it is in none
  int numa_node = -1;     // the nearest memory; -1: the machine has one node, or does not say
  int64_t near_free = 0;  // bytes of that node that are free
  int near = 0, far = 0;  // distances of the kernel's table: to that node's memory from itself, and from the farthest node
};

struct GpuUser {
  int32_t pid = 0;
  std::string program;
  int64_t memory = 0;  // bytes
  bool ours = false;   // a client of the scheduler
};

// The program that is to be run, where one was named.
struct ProgramFacts {
  std::string name;
  std::string path;  // empty: there is none
  enum class Kind { kOrdinary, kStatic, kPrivileged, k32Bit, kMusl, kForeign } kind = Kind::kOrdinary;
  std::string hint;  // of wrappers such as docker and sudo
};

struct SchedulerFacts {
  std::string runtime_dir;
  bool clients_served = false;  // its clients' socket answers
  bool admin = false;           // and its admin socket answers us
  bool replaceable = false;     // it does not, and yet we can write the folder of its clients' socket
  std::string admin_error;
  std::string version;  // with admin
  bool nvml = false;
  std::optional<bool> real_time;  // whether its thread that grants is, as it is asked
  int64_t host_budget = -1;       // bytes that may be lent for swapping
  std::string host_bound;         // what that comes from
  uint64_t clients = 0;
  uint64_t clients_other_version = 0;
};

struct Facts {
  std::string own_version;
  bool proc = true;           // it is mounted
  bool systemd = true;        // it runs here
  std::string kernel_module;  // version of the driver's kernel part; empty: none is loaded
  bool pci_gpu = false;       // an NVIDIA GPU is on the PCI bus
  bool cuda_library = false;  // the driver's libcuda.so.1 is found
  bool nvidia_smi = false;    // it is there, and answered
  std::vector<DeviceFile> devices;
  std::vector<GpuFacts> gpus;
  std::vector<PciGpu> pci_gpus;
  std::vector<GpuUser> users;
  std::string library;  // libnvshare.so; empty: library_error
  std::string library_error;
  std::string preload_file;  // of ld.so.preload: its line with libnvshare, empty: none
  std::string glibc;         // "2.36"
  std::string machine;       // "x86_64"
  std::optional<ProgramFacts> program;
  SchedulerFacts scheduler;
  std::string mps;            // the MPS daemon that runs, or the variable that names one
  std::string container;      // "docker", "podman", "kubernetes", ...
  int64_t cgroup_limit = -1;  // bytes; -1: none
  int64_t cgroup_room = -1;
  int64_t locked_memory = -1;  // ulimit -l in bytes; -1: unlimited
  int64_t host_total = 0;
  int64_t host_available = 0;
};

}  // namespace nvshare::cli::doctor
