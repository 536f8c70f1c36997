#include "cli/doctor/collect.h"

#include <elf.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/cgroup_memory.h"
#include "cli/environment.h"
#include "cli/scheduler_link.h"
#include "protocol/paths.h"

namespace nvshare::cli::doctor {
namespace {

namespace fs = std::filesystem;

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::vector<std::vector<std::string>> cells_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, ',');) cells.push_back(trimmed(cell));
    rows.push_back(std::move(cells));
  }
  return rows;
}

// 0 for "[N/A]" and the like.
int64_t number_of(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

std::optional<bool> enabled(const std::string& text) {
  if (text == "Enabled") return true;
  if (text == "Disabled") return false;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = popen(("env -u LD_PRELOAD timeout 5 " + command + " 2> /dev/null < /dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  return pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

namespace {

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ..." or "... Open Kernel Module for x86_64  580.65.06  ..."
std::string kernel_module_version(const std::string& text) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool version = word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (version) return word;
  }
  return "";
}

// Of "Node 1 MemFree:  131072 kB", in bytes.
int64_t free_of_node(const std::string& meminfo) {
  const size_t at = meminfo.find("MemFree:");
  return at == std::string::npos ? 0 : number_of(meminfo.substr(at + 8)) << 10;
}

void look_at_node(const std::string& root, PciGpu& gpu) {
  const std::string nodes = root + "/sys/devices/system/node/node";
  if (gpu.numa_node < 0 || access((nodes + "1").c_str(), F_OK) != 0) {
    gpu.numa_node = -1;
    return;
  }
  const std::string node = nodes + std::to_string(gpu.numa_node);
  gpu.near_free = free_of_node(content_of(node + "/meminfo"));
  std::istringstream distances(content_of(node + "/distance"));
  for (int distance = 0; distances >> distance;) {
    gpu.near = gpu.near == 0 ? distance : std::min(gpu.near, distance);
    gpu.far = std::max(gpu.far, distance);
  }
}

void look_at_driver(const std::string& root, Facts& facts) {
  facts.kernel_module = kernel_module_version(content_of(root + "/proc/driver/nvidia/version"));
  facts.pci_gpus = look_at_pci(root);
  facts.pci_gpu = !facts.pci_gpus.empty();
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib64",
                             "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current"}) {
    facts.cuda_library |= access((root + folder + "/libcuda.so.1").c_str(), R_OK) == 0;
  }
  if (const char* path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');)
      facts.cuda_library |= access((folder + "/libcuda.so.1").c_str(), R_OK) == 0;
  }
  std::set<std::string> files = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator(root + "/dev", ignored)) {
    const std::string name = file.path().filename();
    if (name.rfind("nvidia", 0) == 0 && name.find_first_not_of("0123456789", 6) == std::string::npos && name.size() > 6)
      files.insert("/dev/" + name);
  }
  for (const std::string& file : files) {
    facts.devices.push_back({file, access((root + file).c_str(), F_OK) == 0, access((root + file).c_str(), R_OK | W_OK) == 0});
  }
}

void look_at_gpus(Facts& facts) {
  if (facts.kernel_module.empty()) return;
  const auto gpus = output_of(std::string("nvidia-smi ") + kGpuQuery + " --format=csv,noheader,nounits");
  facts.nvidia_smi = gpus.has_value();
  if (!gpus) return;
  facts.gpus = parse_gpus(*gpus);
  if (const auto users = output_of(std::string("nvidia-smi ") + kUserQuery + " --format=csv,noheader,nounits"))
    facts.users = parse_users(*users);
}

void look_at_scheduler(Facts& facts) {
  SchedulerFacts& out = facts.scheduler;
  auto link = find_scheduler();
  if (!link) {
    const char* configured = std::getenv("NVSHARE_RUNTIME_DIR");
    out.runtime_dir = configured != nullptr ? configured : "/run/nvshare or " + own_runtime_directory();
    return;
  }
  out.runtime_dir = link->runtime_directory;
  out.clients_served = true;
  out.admin_error = link->admin_error;
  const std::string socket = link->runtime_directory + protocol::kClientSocket;
  out.replaceable = !link->admin && access(socket.substr(0, socket.rfind('/')).c_str(), W_OK) == 0;
  if (!link->admin) return;
  auto status = link->admin->status();
  if (!status) {
    out.admin_error = status.error().text;
    return;
  }
  out.admin = true;
  out.version = status->version;
  out.nvml = status->nvml;
  // Its first thread grants, and has just made a report. -1: its number is of another PID namespace.
  if (const int policy = sched_getscheduler(status->pid); policy >= 0) out.real_time = (policy & ~SCHED_RESET_ON_FORK) == SCHED_RR;
  out.host_budget = status->host_memory_budget;
  out.host_bound = status->host_memory_bound;
  out.clients = status->clients.size();
  for (const auto& client : status->clients) {
    out.clients_other_version += client.library != status->version ? 1 : 0;
    for (GpuUser& user : facts.users) user.ours |= user.pid == client.pid;
  }
}

std::string mps_of(const std::string& root) {
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator(root + "/proc", ignored)) {
    const std::string name = trimmed(content_of(process.path().string() + "/comm"));  // cut at 15 characters by the kernel
    if (name.rfind("nvidia-cuda-mps", 0) == 0) return "an MPS daemon runs (pid " + process.path().filename().string() + ")";
  }
  const char* pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return pipe != nullptr && *pipe != 0 ? std::string("CUDA_MPS_PIPE_DIRECTORY is ") + pipe : "";
}

std::string container_of(const std::string& root) {
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  if (access((root + "/.dockerenv").c_str(), F_OK) == 0) return "docker";
  if (access((root + "/run/.containerenv").c_str(), F_OK) == 0) return "podman";
  return "";
}

void look_at_host(const std::string& root, Facts& facts) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::string rest;
  for (int64_t kib = 0; file >> name >> kib && std::getline(file, rest);) {
    if (name == "MemTotal:") facts.host_total = kib << 10;
    if (name == "MemAvailable:") facts.host_available = kib << 10;
  }
  const CgroupRoom room = own_cgroup_memory_room();
  if (room.limited()) {
    facts.cgroup_limit = static_cast<int64_t>(room.limit);
    facts.cgroup_room = static_cast<int64_t>(room.available);
  }
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    facts.locked_memory = static_cast<int64_t>(locked.rlim_cur);
  utsname system{};
  if (uname(&system) == 0) facts.machine = system.machine;
  facts.glibc = gnu_get_libc_version();
}

void look_at_library(const std::string& root, Facts& facts) {
  if (auto installation = Installation::of_this_program()) {
    auto library = installation->library();
    library ? facts.library = *library : facts.library_error = library.error().text;
  } else {
    facts.library_error = installation.error().text;
  }
  std::ifstream preload(root + "/etc/ld.so.preload");
  for (std::string line; std::getline(preload, line);) {
    if (line.find("libnvshare.so") != std::string::npos) facts.preload_file = trimmed(line);
  }
}

// The loader that an ELF file of 64 bits names; empty: none.
std::string loader_of(std::ifstream& file, const Elf64_Ehdr& header) {
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff) + i * header.e_phentsize);
    if (!file.read(reinterpret_cast<char*>(&part), sizeof part)) return "";
    if (part.p_type != PT_INTERP || part.p_filesz > 4096) continue;
    std::string text(part.p_filesz, 0);
    file.seekg(static_cast<std::streamoff>(part.p_offset));
    return file.read(text.data(), static_cast<std::streamsize>(text.size())) ? std::string(text.c_str()) : "";
  }
  return "";
}

}  // namespace

std::vector<PciGpu> look_at_pci(const std::string& root) {
  std::vector<PciGpu> gpus;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root + "/sys/bus/pci/devices", ignored)) {
    const std::string path = device.path().string();
    if (trimmed(content_of(path + "/vendor")) != "0x10de" || content_of(path + "/class").rfind("0x03", 0) != 0) continue;
    PciGpu gpu;
    gpu.address = device.path().filename();
    gpu.iommu = trimmed(content_of(path + "/iommu_group/type"));
    const std::string node = trimmed(content_of(path + "/numa_node"));
    gpu.numa_node = node.empty() ? -1 : static_cast<int>(number_of(node));
    look_at_node(root, gpu);
    gpus.push_back(std::move(gpu));
  }
  std::sort(gpus.begin(), gpus.end(), [](const PciGpu& one, const PciGpu& other) { return one.address < other.address; });
  return gpus;
}

ProgramFacts look_at_program(const std::string& path) {
  using Kind = ProgramFacts::Kind;
  ProgramFacts program;
  program.path = path;
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return program;
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    program.kind = Kind::k32Bit;
  } else if (header.e_machine != EM_X86_64) {
    program.kind = Kind::kForeign;
  } else if (loader_of(file, header).find("musl") != std::string::npos) {
    program.kind = Kind::kMusl;
  } else {
    switch (kind_of_program(path)) {
      case ProgramKind::kOrdinary:
        break;
      case ProgramKind::kStatic:
        program.kind = Kind::kStatic;
        break;
      case ProgramKind::kPrivileged:
        program.kind = Kind::kPrivileged;
        break;
    }
  }
  return program;
}

std::vector<GpuFacts> parse_gpus(const std::string& csv) {
  std::vector<GpuFacts> gpus;
  for (const auto& cells : cells_of(csv)) {
    if (cells.size() < 10) continue;
    GpuFacts gpu;
    gpu.index = static_cast<int>(number_of(cells[0]));
    gpu.name = cells[1];
    gpu.uuid = cells[2];
    gpu.persistence = enabled(cells[3]);
    gpu.mig = enabled(cells[4]);
    gpu.link_generation = static_cast<int>(number_of(cells[5]));
    gpu.link_generation_max = static_cast<int>(number_of(cells[6]));
    gpu.link_width = static_cast<int>(number_of(cells[7]));
    gpu.link_width_max = static_cast<int>(number_of(cells[8]));
    gpu.memory = number_of(cells[9]) << 20;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::vector<GpuUser> parse_users(const std::string& csv) {
  std::vector<GpuUser> users;
  for (const auto& cells : cells_of(csv)) {
    if (cells.size() < 3 || number_of(cells[0]) <= 0) continue;
    // A name may have commas in it.
    std::string name = cells[1];
    for (size_t i = 2; i + 1 < cells.size(); ++i) name += "," + cells[i];
    users.push_back(
        {static_cast<int32_t>(number_of(cells[0])), name.substr(name.find_last_of('/') + 1), number_of(cells.back()) << 20, false});
  }
  return users;
}

Facts collect(const std::string& root, const std::string& program) {
  Facts facts;
  facts.own_version = NVSHARE_VERSION;
  facts.proc = access((root + "/proc/meminfo").c_str(), F_OK) == 0;
  facts.systemd = access((root + "/run/systemd/system").c_str(), F_OK) == 0;
  look_at_driver(root, facts);
  look_at_gpus(facts);
  look_at_library(root, facts);
  look_at_scheduler(facts);
  look_at_host(root, facts);
  facts.mps = mps_of(root);
  facts.container = container_of(root);
  if (!program.empty()) {
    const auto path = resolve_program(program, current_environment());
    facts.program = path ? look_at_program(*path) : ProgramFacts();
    facts.program->name = program;
    if (const auto hint = wrapper_hint(program)) facts.program->hint = *hint;
  }
  return facts;
}

}  // namespace nvshare::cli::doctor
