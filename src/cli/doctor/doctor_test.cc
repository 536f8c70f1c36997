// What `nvsharectl doctor` says of machines that are made up here.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/doctor/checks.h"
#include "cli/doctor/collect.h"

namespace nvshare::cli::doctor {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Facts healthy() {
  Facts facts;
  facts.own_version = "1.2.3";
  facts.kernel_module = "580.159.04";
  facts.pci_gpu = facts.cuda_library = facts.nvidia_smi = true;
  facts.devices = {{"/dev/nvidia0", true, true}, {"/dev/nvidiactl", true, true}};
  facts.gpus = {{0, "NVIDIA H200", "GPU-1", true, false, 5, 5, 16, 16, 140 * kGiB}};
  facts.users = {{4711, "python3", kGiB, true}};
  facts.library = "/usr/lib/nvshare/libnvshare.so";
  facts.glibc = "2.36";
  facts.machine = "x86_64";
  facts.scheduler = {"/run/nvshare", true, true, false, "", "1.2.3", true, true, 100 * kGiB, "", 1, 0};
  facts.host_total = 512 * kGiB;
  facts.host_available = 400 * kGiB;
  return facts;
}

// The findings of a check that are not ok, as "level: found".
std::string said(const Facts& facts, const std::string& check) {
  static constexpr const char* kNames[] = {"ok", "note", "warning", "problem"};
  std::string text;
  for (const Finding& finding : examine(facts)) {
    if (finding.check != check || finding.level == Level::kOk) continue;
    text += std::string(kNames[static_cast<size_t>(finding.level)]) + ": " + finding.found + "\n";
    EXPECT_FALSE(finding.means.empty()) << finding.found;
  }
  return text;
}

TEST(Doctor, AHealthyMachineHasOnlyGoodFindings) {
  for (const Finding& finding : examine(healthy())) EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.found;
  EXPECT_EQ(exit_code(examine(healthy())), 0);
}

struct Case {
  const char* name;
  void (*change)(Facts&);
  const char* check;
  const char* said;
  int exit_code;
};

TEST(Doctor, EachTroubleIsNamed) {
  const Case cases[] = {
      {"no GPU", [](Facts& f) { f.kernel_module.clear(), f.pci_gpu = false; }, "driver", "problem: no NVIDIA driver and no NVIDIA GPU\n",
       1},
      {"no driver", [](Facts& f) { f.kernel_module.clear(); }, "driver", "problem: an NVIDIA GPU is there, its driver is not loaded\n", 1},
      {"old driver", [](Facts& f) { f.kernel_module = "390.157"; }, "driver", "problem: 390.157\n", 1},
      {"another driver", [](Facts& f) { f.kernel_module = "550.54.15"; }, "driver", "note: 550.54.15\n", 0},
      {"no libcuda", [](Facts& f) { f.cuda_library = false; }, "driver", "problem: libcuda.so.1 is not found\n", 1},
      {"no uvm",
       [](Facts& f) {
         f.devices.push_back({"/dev/nvidia-uvm", false, false});
       },
       "devices", "problem: missing: /dev/nvidia-uvm\n", 1},
      {"iommu",
       [](Facts& f) {
         f.pci_gpus = {{"0000:3b:00.0", "DMA-FQ", -1, 0, 0, 0}};
       },
       "iommu", "note: GPU at 0000:3b:00.0: an IOMMU translates its transfers (DMA-FQ)\n", 0},
      {"iommu passes through",
       [](Facts& f) {
         f.pci_gpus = {{"0000:3b:00.0", "identity", -1, 0, 0, 0}};
       },
       "iommu", "", 0},
      {"far memory",
       [](Facts& f) {
         f.pci_gpus = {{"0000:3b:00.0", "", 1, 20 * kGiB, 10, 21}};
       },
       "numa", "note: GPU at 0000:3b:00.0: nearest memory is node 1, 20 GiB free\n", 0},
      {"near memory",
       [](Facts& f) {
         f.pci_gpus = {{"0000:3b:00.0", "", 1, 200 * kGiB, 10, 21}};
       },
       "numa", "", 0},
      {"no right", [](Facts& f) { f.devices[0].usable = false; }, "devices", "problem: not readable and writable for you: /dev/nvidia0\n",
       1},
      {"no library", [](Facts& f) { f.library.clear(), f.library_error = "cannot find it"; }, "library", "problem: cannot find it\n", 1},
      {"preloaded", [](Facts& f) { f.preload_file = "/x/libnvshare.so"; }, "library", "note: /etc/ld.so.preload has /x/libnvshare.so\n", 0},
      {"no program",
       [](Facts& f) {
         f.program = ProgramFacts{"nope", "", {}, ""};
       },
       "program", "problem: there is no program 'nope'\n", 1},
      {"docker",
       [](Facts& f) {
         f.program = ProgramFacts{"docker", "/usr/bin/docker", {}, "mount it"};
       },
       "program", "problem: docker starts programs elsewhere\n", 1},
      {"static",
       [](Facts& f) {
         f.program = ProgramFacts{"p", "/p", ProgramFacts::Kind::kStatic, ""};
       },
       "program", "problem: /p is statically linked\n", 1},
      {"setuid",
       [](Facts& f) {
         f.program = ProgramFacts{"p", "/p", ProgramFacts::Kind::kPrivileged, ""};
       },
       "program", "problem: /p is setuid, setgid or has file capabilities\n", 1},
      {"32-bit",
       [](Facts& f) {
         f.program = ProgramFacts{"p", "/p", ProgramFacts::Kind::k32Bit, ""};
       },
       "program", "problem: /p is a 32-bit program\n", 1},
      {"musl",
       [](Facts& f) {
         f.program = ProgramFacts{"p", "/p", ProgramFacts::Kind::kMusl, ""};
       },
       "program", "problem: /p uses musl libc\n", 1},
      {"foreign",
       [](Facts& f) {
         f.program = ProgramFacts{"p", "/p", ProgramFacts::Kind::kForeign, ""};
       },
       "program", "problem: /p is for another kind of machine\n", 1},
      {"old glibc", [](Facts& f) { f.glibc = "2.12"; }, "glibc", "problem: 2.12\n", 1},
      {"arm", [](Facts& f) { f.machine = "aarch64"; }, "machine", "problem: aarch64\n", 1},
      {"no scheduler", [](Facts& f) { f.scheduler = {.runtime_dir = "/run/nvshare"}; }, "socket",
       "note: no scheduler answers in /run/nvshare\n", 0},
      {"not allowed", [](Facts& f) { f.scheduler.admin = false, f.scheduler.admin_error = "permission denied"; }, "permissions",
       "warning: permission denied\n", 0},
      {"upgrade", [](Facts& f) { f.scheduler.version = "1.2.4", f.scheduler.clients_other_version = 1; }, "versions",
       "warning: scheduler 1.2.4, nvsharectl 1.2.3\nnote: 1 of 1 clients have the library of another release\n", 0},
      {"no NVML", [](Facts& f) { f.scheduler.nvml = false; }, "nvml", "warning: the scheduler has no NVML\n", 0},
      {"no real time", [](Facts& f) { f.scheduler.real_time = false; }, "priority",
       "note: viewers do not make the scheduler a real-time program\n", 0},
      {"whether real time is not known", [](Facts& f) { f.scheduler.real_time.reset(); }, "priority", "", 0},
      {"MIG", [](Facts& f) { f.gpus[0].mig = true; }, "mig", "warning: GPU 0 (NVIDIA H200): MIG is on\n", 0},
      {"persistence", [](Facts& f) { f.gpus[0].persistence = false; }, "persistence",
       "note: GPU 0 (NVIDIA H200): persistence mode is off\n", 0},
      {"lanes", [](Facts& f) { f.gpus[0].link_width = 8; }, "pcie", "warning: GPU 0 (NVIDIA H200): 8 lanes of 16\n", 0},
      {"little memory", [](Facts& f) { f.host_available = 16 * kGiB; }, "host memory",
       "warning: 16 GiB available, GPU 0 (NVIDIA H200) has 140 GiB\n", 0},
      {"others",
       [](Facts& f) {
         f.users.push_back({5, "game", 2 * kGiB, false});
       },
       "others", "warning: game (5) use the GPU without nvshare, 2 GiB in all\n", 0},
      {"MPS", [](Facts& f) { f.mps = "an MPS daemon runs (pid 7)"; }, "mps", "warning: an MPS daemon runs (pid 7)\n", 0},
      {"tight cgroup", [](Facts& f) { f.cgroup_limit = 4 * kGiB, f.cgroup_room = kGiB / 2; }, "cgroup",
       "warning: memory limit 4 GiB, 512 MiB left\n", 0},
      {"container", [](Facts& f) { f.container = "docker"; }, "container", "note: this is a docker container\n", 0},
      {"writable socket folder", [](Facts& f) { f.container = "docker", f.scheduler.admin = false, f.scheduler.replaceable = true; },
       "socket folder", "warning: the folder of the clients' socket in /run/nvshare can be written from here\n", 0},
      {"no nvidia-smi", [](Facts& f) { f.nvidia_smi = false; }, "nvidia-smi", "note: it is missing or does not answer\n", 0},
  };
  for (const Case& one : cases) {
    Facts facts = healthy();
    one.change(facts);
    EXPECT_EQ(said(facts, one.check), one.said) << one.name;
    EXPECT_EQ(exit_code(examine(facts)), one.exit_code) << one.name;
  }
}

// As in a container in which a scheduler of its own runs.
TEST(Doctor, AContainerWhoseSchedulerAnswersIsNotToldThatNoneDoes) {
  const auto of_container = [](bool admin) {
    Facts facts = healthy();
    facts.container = "docker";
    facts.scheduler.admin = admin;
    const std::vector<Finding> findings = examine(facts);
    const auto at = std::find_if(findings.begin(), findings.end(), [](const Finding& one) { return one.check == "container"; });
    return at != findings.end() ? at->means : std::string();
  };
  EXPECT_EQ(of_container(true), "A scheduler answers 'status' and 'set' here; the machine's does so outside of containers only.");
  EXPECT_EQ(of_container(false), "The machine's scheduler answers 'status' and 'set' outside of containers only.");
}

TEST(Doctor, TextAndJsonSayTheSame) {
  Facts facts = healthy();
  facts.gpus[0].mig = true;
  facts.library.clear();
  facts.library_error = "cannot \033[31mfind it";
  const auto findings = examine(facts);
  const std::string text = draw(findings);
  EXPECT_NE(text.find("problem  library       cannot ?[31mfind it\n                       Nothing can be preloaded into programs.\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("1 problem, 1 warning\n"), std::string::npos) << text;
  std::istringstream narrow(draw(findings, 80));
  for (std::string line; std::getline(narrow, line);) EXPECT_LE(line.size(), 80u) << line;
  const auto json = nlohmann::json::parse(json_of(findings));
  EXPECT_EQ(json.at("problems"), 1);
  EXPECT_EQ(json.at("warnings"), 1);
  EXPECT_EQ(json.at("findings").size(), findings.size());
  EXPECT_EQ(json.at("findings")[0].at("check"), "driver");
}

TEST(Doctor, ReadsWhatNvidiaSmiPrints) {
  const auto gpus = parse_gpus(
      "0, NVIDIA H200, GPU-1, Enabled, Disabled, 5, 5, 16, 16, 143771\n1, NVIDIA GeForce GTX 1080, GPU-2, Disabled, [N/A], 1, 3, 8, 16, "
      "8192\nbroken\n");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].memory, 143771ll << 20);
  EXPECT_EQ(gpus[0].mig, false);
  EXPECT_FALSE(gpus[1].mig);
  EXPECT_EQ(gpus[1].persistence, false);
  EXPECT_EQ(gpus[1].link_width, 8);
  const auto users = parse_users("4711, /usr/bin/python3, 512\n12, a, b, [N/A]\nNo running processes found\n");
  ASSERT_EQ(users.size(), 2u);
  EXPECT_EQ(users[0].program, "python3");
  EXPECT_EQ(users[0].memory, 512ll << 20);
  EXPECT_EQ(users[1].program, "a,b");
}

TEST(Doctor, SeesTheIommuAndTheNearestMemory) {
  namespace fs = std::filesystem;
  char folder[] = "/tmp/nvshare-doctor-XXXXXX";
  const std::string root = mkdtemp(folder);
  const std::string device = root + "/sys/bus/pci/devices/0000:3b:00.0";
  const std::string nodes = root + "/sys/devices/system/node";
  for (const std::string& path : {device + "/iommu_group", root + "/sys/bus/pci/devices/0000:00:1f.3", nodes + "/node0", nodes + "/node1"})
    fs::create_directories(path);
  std::ofstream(device + "/vendor") << "0x10de\n";
  std::ofstream(device + "/class") << "0x030200\n";
  std::ofstream(device + "/iommu_group/type") << "DMA-FQ\n";
  std::ofstream(device + "/numa_node") << "1\n";
  std::ofstream(root + "/sys/bus/pci/devices/0000:00:1f.3/vendor") << "0x8086\n";
  std::ofstream(nodes + "/node1/meminfo") << "Node 1 MemTotal:       4096 kB\nNode 1 MemFree:        1024 kB\n";
  std::ofstream(nodes + "/node1/distance") << "21 10\n";
  const auto gpus = look_at_pci(root);
  fs::remove_all(nodes + "/node1");
  const auto one_node = look_at_pci(root);
  fs::remove_all(root);
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(gpus[0].address, "0000:3b:00.0");
  EXPECT_EQ(gpus[0].iommu, "DMA-FQ");
  EXPECT_EQ(gpus[0].numa_node, 1);
  EXPECT_EQ(gpus[0].near_free, 1 << 20);
  EXPECT_EQ(gpus[0].near, 10);
  EXPECT_EQ(gpus[0].far, 21);
  EXPECT_EQ(one_node.at(0).numa_node, -1) << "all memory is as near";
  EXPECT_TRUE(look_at_pci("/nonexistent").empty());
}

TEST(Doctor, SaysWhereThereIsNoProc) {
  char folder[] = "/tmp/nvshare-doctor-XXXXXX";
  const std::string root = mkdtemp(folder);
  const Facts facts = collect(root, "");
  std::filesystem::remove_all(root);
  const std::vector<Finding> found = examine(facts);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].found, "/proc is not mounted here");
  EXPECT_NE(found[1].check, "driver") << "there may be one";
  for (const Finding& finding : found) EXPECT_EQ(finding.to_do.find("systemctl"), std::string::npos) << "nor is there a systemd";
}

TEST(Doctor, SeesTheDriverOfAMachine) {
  namespace fs = std::filesystem;
  char folder[] = "/tmp/nvshare-doctor-XXXXXX";
  const std::string root = mkdtemp(folder);
  for (const char* path : {"/proc/driver/nvidia", "/dev", "/etc", "/usr/lib64", "/sys/bus/pci/devices/0000:01:00.0"})
    fs::create_directories(root + path);
  std::ofstream(root + "/proc/driver/nvidia/version")
      << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 12.2.0\n";
  for (const char* path : {"/dev/nvidia0", "/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia-modeset", "/usr/lib64/libcuda.so.1"})
    std::ofstream(root + path) << "";
  std::ofstream(root + "/etc/ld.so.preload") << "/opt/nvshare/libnvshare.so \n";
  std::ofstream(root + "/sys/bus/pci/devices/0000:01:00.0/vendor") << "0x10de\n";
  std::ofstream(root + "/sys/bus/pci/devices/0000:01:00.0/class") << "0x030000\n";
  std::ofstream(root + "/proc/meminfo") << "MemTotal:       1024 kB\nMemAvailable:    512 kB\n";
  const Facts facts = collect(root, "/bin/sh");
  fs::remove_all(root);
  EXPECT_EQ(facts.kernel_module, "580.159.04");
  EXPECT_TRUE(facts.pci_gpu && facts.cuda_library);
  ASSERT_EQ(facts.devices.size(), 4u);  // nvidia-uvm, which is missing, too
  EXPECT_EQ(std::count_if(facts.devices.begin(), facts.devices.end(), [](const DeviceFile& file) { return file.there; }), 3);
  EXPECT_EQ(facts.preload_file, "/opt/nvshare/libnvshare.so");
  EXPECT_EQ(facts.host_available, 512 << 10);
  ASSERT_TRUE(facts.program);
  EXPECT_EQ(facts.program->kind, ProgramFacts::Kind::kOrdinary);
  EXPECT_EQ(facts.glibc.rfind("2.", 0), 0u);
}

}  // namespace
}  // namespace nvshare::cli::doctor
