#include "cli/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/columns.h"
#include "cli/table.h"
#include "cli/units.h"

namespace nvshare::cli::doctor {
namespace {

// Of drivers: cuMemCreate and its kin came with 440.33 (CUDA 10.2), cuGetProcAddress with 465 (CUDA 11.3). bench/results is of 580.
constexpr int kDriverMeasured = 580;
constexpr int kDriverWithVirtualMemory = 440;

using Findings = std::vector<Finding>;

std::string bytes_of(int64_t bytes) { return format_bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))); }

int major_of(const std::string& version) {
  int number = 0;
  for (const char c : version) {
    if (c < '0' || c > '9' || number > 100000) break;
    number = number * 10 + (c - '0');
  }
  return number;
}

void check_driver(const Facts& facts, Findings& out) {
  if (!facts.proc) {
    out.push_back({Level::kProblem, "proc", "/proc is not mounted here",
                   "What is looked up there is not known: the driver, memory, processes. No program can be started under nvshare.",
                   "mount -t proc proc /proc"});
    return;
  }
  if (facts.kernel_module.empty()) {
    const bool gpu = facts.pci_gpu;
    out.push_back({Level::kProblem, "driver",
                   gpu ? "an NVIDIA GPU is there, its driver is not loaded" : "no NVIDIA driver and no NVIDIA GPU",
                   "CUDA programs cannot run here.",
                   gpu ? "Install the distribution's NVIDIA driver, or run 'modprobe nvidia'; in a container start it with --gpus all."
                       : "On a machine without a GPU 'nvsharectl demo' plays on a stand-in."});
    return;
  }
  const int major = major_of(facts.kernel_module);
  if (major < kDriverWithVirtualMemory) {
    out.push_back({Level::kProblem, "driver", facts.kernel_module,
                   "It has no virtual memory management (cuMemCreate), by which nvshare swaps.",
                   "Install driver 450 or newer; or run programs with NVSHARE_MEMORY_BACKEND=managed."});
  } else if (major != kDriverMeasured) {
    out.push_back({Level::kNote, "driver", facts.kernel_module,
                   fmt::format("It has what nvshare needs; measured was driver {} only.", kDriverMeasured), ""});
  } else {
    out.push_back({Level::kOk, "driver", facts.kernel_module + ", the branch that nvshare was measured with", "", ""});
  }
  if (!facts.cuda_library) {
    out.push_back({Level::kProblem, "driver", "libcuda.so.1 is not found", "Programs cannot reach the driver.",
                   "Install the driver's user part (Debian: libcuda1); in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility."});
  }
}

void check_devices(const Facts& facts, Findings& out) {
  if (facts.kernel_module.empty()) return;
  std::string missing;
  std::string closed;
  for (const DeviceFile& file : facts.devices) {
    if (!file.there) missing += (missing.empty() ? "" : " ") + file.path;
    if (file.there && !file.usable) closed += (closed.empty() ? "" : " ") + file.path;
  }
  if (!missing.empty()) {
    out.push_back({Level::kProblem, "devices", "missing: " + missing, "CUDA cannot be initialised.",
                   "Run 'nvidia-modprobe -u -c 0' as root; in a container start it with --gpus all."});
  }
  if (!closed.empty()) {
    out.push_back({Level::kProblem, "devices", "not readable and writable for you: " + closed, "Your programs cannot use the GPU.",
                   "Add yourself to the group that owns them (often video or render), then log in again."});
  }
  if (missing.empty() && closed.empty())
    out.push_back({Level::kOk, "devices", fmt::format("{} device files, all usable", facts.devices.size()), "", ""});
}

void check_library(const Facts& facts, Findings& out) {
  if (facts.library.empty()) {
    out.push_back({Level::kProblem, "library", facts.library_error, "Nothing can be preloaded into programs.",
                   "Install the whole tarball or package, or set NVSHARE_LIBRARY to the path of libnvshare.so."});
  } else {
    out.push_back({Level::kOk, "library", facts.library, "", ""});
  }
  if (!facts.preload_file.empty()) {
    out.push_back({Level::kNote, "library", "/etc/ld.so.preload has " + facts.preload_file,
                   "Every program here loads it, not only those of 'nvsharectl run'.", ""});
  }
}

void check_program(const Facts& facts, Findings& out) {
  if (!facts.program) return;
  const ProgramFacts& program = *facts.program;
  const auto bad = [&](const char* found, const char* means, const char* to_do) {
    out.push_back({Level::kProblem, "program", program.path + " " + found, means, to_do});
  };
  if (!program.hint.empty()) {
    out.push_back({Level::kProblem, "program", program.name + " starts programs elsewhere", program.hint, ""});
    return;
  }
  if (program.path.empty()) {
    out.push_back({Level::kProblem, "program", "there is no program '" + program.name + "'", "It is neither a path nor found in PATH.",
                   "Check its name."});
    return;
  }
  switch (program.kind) {
    case ProgramFacts::Kind::kOrdinary:
      out.push_back({Level::kOk, "program", program.path + " can be preloaded", "", ""});
      break;
    case ProgramFacts::Kind::kStatic:
      bad("is statically linked", "No library can be preloaded into it: it runs unshared.",
          "Link it dynamically with libc; a static CUDA runtime does no harm.");
      break;
    case ProgramFacts::Kind::kPrivileged:
      bad("is setuid, setgid or has file capabilities", "The loader ignores LD_PRELOAD for it: it runs unshared.",
          "Run a copy without them, or name the library in /etc/ld.so.preload.");
      break;
    case ProgramFacts::Kind::k32Bit:
      bad("is a 32-bit program", "The library is 64-bit, and CUDA has no 32-bit programs any more.", "Build it for x86-64.");
      break;
    case ProgramFacts::Kind::kMusl:
      bad("uses musl libc", "The library and NVIDIA's driver need glibc.", "Run it in an image with glibc (Debian, Ubuntu, UBI).");
      break;
    case ProgramFacts::Kind::kForeign:
      bad("is for another kind of machine", "The library cannot be loaded into it.", "Build it for x86-64.");
      break;
  }
}

void check_glibc(const Facts& facts, Findings& out) {
  const bool old = [&] {
    const size_t dot = facts.glibc.find('.');
    return dot != std::string::npos && major_of(facts.glibc) == 2 && major_of(facts.glibc.substr(dot + 1)) < 17;
  }();
  if (facts.machine != "x86_64") {
    out.push_back({Level::kProblem, "machine", facts.machine, "nvshare is for x86-64 as yet.", ""});
  }
  if (old) {
    out.push_back({Level::kProblem, "glibc", facts.glibc, "libnvshare.so needs 2.17.", "Use a newer system or image."});
  } else {
    out.push_back({Level::kOk, "glibc", facts.glibc, "", ""});
  }
}

void check_scheduler(const Facts& facts, Findings& out) {
  const SchedulerFacts& scheduler = facts.scheduler;
  if (!scheduler.clients_served && !scheduler.admin) {
    out.push_back(
        {Level::kNote, "socket", "no scheduler answers in " + scheduler.runtime_dir,
         "'nvsharectl run' starts one for you; programs with LD_PRELOAD alone run unshared.",
         facts.systemd
             ? "For the whole machine: systemctl enable --now nvshare-scheduler."
             : "For the whole machine: nvshare-scheduler as root, at each boot; systemd, which would start it, does not run here."});
    return;
  }
  if (scheduler.replaceable) {
    out.push_back({Level::kWarning, "socket folder",
                   "the folder of the clients' socket in " + scheduler.runtime_dir + " can be written from here",
                   "Who writes it can take the scheduler's place: programs of the whole machine would swap their data to its memory.",
                   "Of a container: mount it with :ro, which is enough to connect. Else: chmod 755, for its owner alone."});
  }
  if (!scheduler.admin) {
    out.push_back({Level::kWarning, "permissions", scheduler.admin_error,
                   "Your programs share the GPU, but you cannot see 'status' or set limits.",
                   "Ask for it as root or as the scheduler's user; or use one of your own with NVSHARE_RUNTIME_DIR."});
    return;
  }
  out.push_back(
      {Level::kOk, "socket",
       fmt::format("a scheduler answers in {}, {} client{}", scheduler.runtime_dir, scheduler.clients, scheduler.clients == 1 ? "" : "s"),
       "", ""});
  if (scheduler.version != facts.own_version) {
    out.push_back({Level::kWarning, "versions", fmt::format("scheduler {}, nvsharectl {}", scheduler.version, facts.own_version),
                   "They understand each other, but an upgrade is half done.", "Restart the scheduler: no program fails meanwhile."});
  }
  if (scheduler.clients_other_version > 0) {
    out.push_back({Level::kNote, "versions",
                   fmt::format("{} of {} clients have the library of another release", scheduler.clients_other_version, scheduler.clients),
                   "A program keeps the library that it started with.", ""});
  }
  if (!scheduler.nvml) {
    out.push_back({Level::kWarning, "nvml", "the scheduler has no NVML",
                   "It does not see memory of programs that are not under nvshare, and assumes 300 MiB for each context.",
                   "Install libnvidia-ml.so.1 where the scheduler runs, then restart it."});
  }
  if (scheduler.real_time == false) {
    out.push_back({Level::kNote, "priority", "viewers do not make the scheduler a real-time program",
                   "Where all processors are busy, programs wait for the GPU longer beside 'top' and the page.",
                   "Give it CAP_SYS_NICE or RLIMIT_RTPRIO=1 (its systemd unit does), and leave its setting real_time on."});
  }
}

void check_gpus(const Facts& facts, Findings& out) {
  if (!facts.kernel_module.empty() && !facts.nvidia_smi) {
    out.push_back({Level::kNote, "nvidia-smi", "it is missing or does not answer",
                   "MIG, persistence mode, the link and other programs were not looked at.", "Install nvidia-smi (Debian: nvidia-smi)."});
  }
  for (const GpuFacts& gpu : facts.gpus) {
    const std::string which = fmt::format("GPU {} ({})", gpu.index, gpu.name);
    if (gpu.mig.value_or(false)) {
      out.push_back({Level::kWarning, "mig", which + ": MIG is on",
                     "Each MIG device is a GPU of its own for nvshare, and NVML does not tell compute shares there.",
                     "To share the whole GPU: nvidia-smi -i " + std::to_string(gpu.index) + " -mig 0."});
    }
    if (gpu.persistence && !*gpu.persistence) {
      out.push_back({Level::kNote, "persistence", which + ": persistence mode is off",
                     "The driver unloads when no program uses the GPU; the next one starts some seconds later.",
                     "nvidia-smi -pm 1, or run nvidia-persistenced."});
    }
    if (gpu.link_width > 0 && gpu.link_width < gpu.link_width_max) {
      out.push_back({Level::kWarning, "pcie", fmt::format("{}: {} lanes of {}", which, gpu.link_width, gpu.link_width_max),
                     "Swapping goes at the speed of the link.",
                     "Look at the slot and the riser; some mainboards halve a slot when its neighbour is used."});
    } else if (gpu.link_width > 0) {
      out.push_back(
          {Level::kOk, "pcie",
           fmt::format(
               "{}: {} lanes, generation {}{}", which, gpu.link_width, gpu.link_generation,
               gpu.link_generation < gpu.link_generation_max ? fmt::format(" of {} (idle GPUs save power)", gpu.link_generation_max) : ""),
           "", ""});
    }
    if (facts.host_available > 0 && gpu.memory > facts.host_available) {
      out.push_back({Level::kWarning, "host memory",
                     fmt::format("{} available, {} has {}", bytes_of(facts.host_available), which, bytes_of(gpu.memory)),
                     "A program that fills the GPU cannot be swapped out whole, so that others wait until it ends.",
                     "Add memory, or limit programs with --gpu-memory-limit."});
    }
  }
  int64_t foreign = 0;
  std::string names;
  for (const GpuUser& user : facts.users) {
    if (user.ours) continue;
    foreign += user.memory;
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", user.program, user.pid);
  }
  if (!names.empty()) {
    out.push_back({Level::kWarning, "others", fmt::format("{} use the GPU without nvshare, {} in all", names, bytes_of(foreign)),
                   "nvshare leaves them that memory, and they take GPU time as they like.",
                   "Start them with 'nvsharectl run', or end them."});
  }
}

void check_bus(const Facts& facts, Findings& out) {
  int64_t largest = 0;
  for (const GpuFacts& gpu : facts.gpus) largest = std::max(largest, gpu.memory);
  for (const PciGpu& gpu : facts.pci_gpus) {
    const std::string which = "GPU at " + gpu.address;
    if (!gpu.iommu.empty() && gpu.iommu != "identity") {
      out.push_back({Level::kNote, "iommu", fmt::format("{}: an IOMMU translates its transfers ({})", which, gpu.iommu),
                     "Swapping passes through that translation.",
                     "Where no virtual machine needs it: iommu=pt on the kernel's command line."});
    } else {
      out.push_back({Level::kOk, "iommu", which + (gpu.iommu.empty() ? ": no IOMMU" : ": the IOMMU passes its transfers through"), "", ""});
    }
    if (gpu.numa_node < 0) continue;
    const std::string where = fmt::format("{}: nearest memory is node {}, {} free", which, gpu.numa_node, bytes_of(gpu.near_free));
    if (gpu.near_free < largest && gpu.far > gpu.near) {
      out.push_back({Level::kNote, "numa", where,
                     fmt::format("What is swapped out beyond that lies on other nodes (distance {} instead of {}), and moves over the link "
                                 "between processors.",
                                 gpu.far, gpu.near),
                     fmt::format("Keep programs that need much memory on other nodes: numactl --membind. Start those of this GPU with "
                                 "numactl --preferred={}.",
                                 gpu.numa_node)});
    } else {
      out.push_back({Level::kOk, "numa", where, "", ""});
    }
  }
}

void check_mps(const Facts& facts, Findings& out) {
  if (facts.mps.empty()) return;
  out.push_back({Level::kWarning, "mps", facts.mps,
                 "Programs under MPS and others take turns on the GPU; a fault of one MPS program ends its neighbours.",
                 "nvshare needs no MPS; end it with: echo quit | nvidia-cuda-mps-control."});
}

void check_host(const Facts& facts, Findings& out) {
  if (facts.host_total > 0) {
    out.push_back(
        {Level::kOk, "host memory",
         fmt::format(
             "{} available of {}{}", bytes_of(facts.host_available), bytes_of(facts.host_total),
             facts.scheduler.host_budget >= 0 ? fmt::format("; the scheduler may lend {}", bytes_of(facts.scheduler.host_budget)) : ""),
         "", ""});
  }
  if (facts.cgroup_limit >= 0) {
    const bool tight = facts.cgroup_room < (int64_t{1} << 30);
    out.push_back({tight ? Level::kWarning : Level::kNote, "cgroup",
                   fmt::format("memory limit {}, {} left", bytes_of(facts.cgroup_limit), bytes_of(facts.cgroup_room)),
                   "Swapped memory counts here until half of what is left is used; then the scheduler's memory is taken, where it runs "
                   "outside of this limit.",
                   tight ? "Raise the limit, or let the machine's scheduler lend memory (host_arena = \"scheduler\")." : ""});
  }
  if (!facts.container.empty()) {
    out.push_back({Level::kNote, "container", "this is a " + facts.container + " container",
                   facts.scheduler.admin ? "A scheduler answers 'status' and 'set' here; the machine's does so outside of containers only."
                                         : "The machine's scheduler answers 'status' and 'set' outside of containers only.",
                   facts.scheduler.clients_served || facts.scheduler.admin
                       ? ""
                       : "Mount the scheduler's client folder: -v /run/nvshare/client:/run/nvshare/client:ro."});
  }
  if (facts.locked_memory >= 0) {
    out.push_back({Level::kOk, "locked memory",
                   "ulimit -l " + bytes_of(facts.locked_memory) + "; the driver's page-locked memory is not counted in it", "", ""});
  }
}

const char* name_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

size_t number_of(const Findings& findings, Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.level == level; }));
}

}  // namespace

std::vector<Finding> examine(const Facts& facts) {
  Findings findings;
  for (const auto& check : {check_driver, check_devices, check_library, check_program, check_glibc, check_scheduler, check_gpus, check_bus,
                            check_mps, check_host})
    check(facts, findings);
  return findings;
}

std::string draw(const std::vector<Finding>& findings, size_t columns) {
  constexpr size_t kTextAt = 23, kRoomMin = 40;
  const size_t room = columns == 0 ? 0 : std::max(kRoomMin, columns - std::min(columns, kTextAt));
  const auto text = [room](const std::string& said) { return wrapped(printable(said), room, kTextAt); };
  std::string out;
  for (const Finding& finding : findings) {
    out += fmt::format("{:<8} {:<13} {}\n", name_of(finding.level), finding.check, text(finding.found));
    for (const std::string& more : {finding.means, finding.to_do}) {
      if (!more.empty()) out += std::string(kTextAt, ' ') + text(more) + "\n";
    }
  }
  const size_t problems = number_of(findings, Level::kProblem);
  const size_t warnings = number_of(findings, Level::kWarning);
  return out + fmt::format("{} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
}

std::string json_of(const std::vector<Finding>& findings) {
  nlohmann::ordered_json json;
  json["problems"] = number_of(findings, Level::kProblem);
  json["warnings"] = number_of(findings, Level::kWarning);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"level", name_of(finding.level)},
                                {"check", finding.check},
                                {"found", printable(finding.found)},
                                {"means", printable(finding.means)},
                                {"to_do", printable(finding.to_do)}});
  }
  return json.dump();
}

int exit_code(const std::vector<Finding>& findings) { return number_of(findings, Level::kProblem) == 0 ? 0 : 1; }

}  // namespace nvshare::cli::doctor
