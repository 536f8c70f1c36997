#include "kubernetes/devices/gpus.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/nanoseconds.h"
#include "base/parse.h"
#include "cuda/nvml.h"
#include "protocol/admin_connection.h"

namespace nvshare::kubernetes {
namespace {

constexpr int64_t kSlice_ms = 1000;  // NVML's waiting cannot be interrupted
constexpr int kSchedulerTimeout_ms = 3000;

constexpr size_t kUuidText = 96;  // NVML's longest
constexpr size_t kMigDevicesMax = 64;

// Of a GPU that is divided, its MIG devices instead: no program can use it as a whole.
Result<std::vector<Gpu>> gpus_by_nvml(const cuda::Nvml& nvml) {
  Result<uint32_t> count = nvml.device_count();
  if (!count) return count.error();
  std::vector<Gpu> gpus;
  for (uint32_t i = 0; i < *count; ++i) {
    Result<cuda::NvmlDevice> gpu = nvml.device_by_index(i);
    if (!gpu) return gpu.error();
    char address[64] = {};
    const int numa_node = nvml.pci_address_of(*gpu, address) ? numa_node_of("/sys", address) : -1;
    std::array<cuda::NvmlDevice, kMigDevicesMax> parts{*gpu};
    const bool divided = nvml.is_divided(*gpu);
    const size_t part_count = divided ? nvml.mig_devices_of(*gpu, parts) : 1;
    if (part_count == 0) spdlog::warn("GPU {} is divided (MIG), but has no MIG devices yet: it is not offered", i);
    for (size_t part = 0; part < part_count; ++part) {
      char uuid[kUuidText] = {};
      if (auto ok = nvml.uuid_text_of(parts[part], uuid); !ok) return ok.error();
      Result<cuda::NvmlMemory> memory = nvml.memory_of(parts[part]);
      if (!memory) return memory.error();
      gpus.push_back({uuid, static_cast<int64_t>(memory->total - memory->reserved), true, numa_node, static_cast<int>(i)});
    }
  }
  return gpus;
}

// Any figure of a GPU does: a lost one gives none.
bool answers(const cuda::Nvml& nvml, const std::string& uuid) {
  Result<cuda::NvmlDevice> device = nvml.device_by_uuid(uuid.c_str());
  return device && nvml.memory_of(*device);
}

// In a refusal, of which the first matter.
std::string listed(const std::vector<Gpu>& all) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMost); ++i) text += (i > 0 ? ", " : "") + shown(all[i]);
  if (all.size() > kMost) text += " and " + std::to_string(all.size() - kMost) + " more";
  return all.empty() ? "none" : text;
}

}  // namespace

Result<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& all, const std::string& visible) {
  if (visible == "all") return all;
  std::vector<Gpu> chosen;
  std::istringstream stream(visible == "none" || visible == "void" ? "" : visible);
  for (std::string name; std::getline(stream, name, ',');) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) { return gpu.uuid == name; });
    if (auto index = parse_integer(name, 0, std::ssize(all) - 1); found == all.end() && index) found = all.begin() + *index;
    if (found == all.end()) return error_format("'%.100s' is no GPU of this machine, which has %s", name.c_str(), listed(all).c_str());
    bool again = std::any_of(chosen.begin(), chosen.end(), [&](const Gpu& gpu) { return gpu.uuid == found->uuid; });
    if (!again) chosen.push_back(*found);
  }
  return chosen;
}

Result<std::vector<Gpu>> find_gpus(const std::string& visible, const Division& division) {
  Result<cuda::Nvml> nvml = cuda::Nvml::load();
  std::vector<Gpu> all;
  if (nvml) {
    Result<std::vector<Gpu>> found = gpus_by_nvml(*nvml);
    if (!found) return found.error();
    all = std::move(*found);
  } else {
    if (!division.physical_memory || visible.compare(0, 4, "GPU-") != 0) {
      return error_format("%.160s; to go on without, name the GPUs by UUID and set their memory", nvml.error().text);
    }
    std::istringstream stream(visible);
    for (std::string name; std::getline(stream, name, ',');) {
      std::array<uint8_t, 16> uuid{};
      if (auto ok = cuda::parse_uuid(name.c_str(), uuid); !ok) return ok.error();
      all.push_back({name, *division.physical_memory, true});
    }
  }
  Result<std::vector<Gpu>> chosen = visible_gpus(all, visible);
  if (chosen && chosen->empty())
    return error_format("no GPU to offer: the machine has %zu, of which '%.100s' are wanted", all.size(), visible.c_str());
  return chosen;
}

std::string kernel_pci_address(const std::string& address) {
  std::string name = address.size() > 4 ? address.substr(address.find(':') == 8 ? 4 : 0) : address;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

int numa_node_of(const std::string& sysfs, const std::string& pci_address) {
  const std::string name = kernel_pci_address(pci_address);
  int node = -1;
  std::ifstream(sysfs + "/bus/pci/devices/" + name + "/numa_node") >> node;
  return node < 0 ? -1 : node;
}

// 13 graphics engine exception, 31 memory page fault, 43 stopped processing, 45 clean-up after one of the others, 68 video processor
// exception, 94 contained memory error (the program is ended), 109 context switch timeout.
bool is_programs_error(uint64_t xid) {
  constexpr uint64_t kKnown[] = {13, 31, 43, 45, 68, 94, 109};
  return std::find(std::begin(kKnown), std::end(kKnown), xid) != std::end(kKnown);
}

Ailments::One& Ailments::of(const std::string& uuid) {
  auto known = std::find_if(all_.begin(), all_.end(), [&](const One& one) { return one.uuid == uuid; });
  return known != all_.end() ? *known : all_.emplace_back(One{uuid, 0, 0});
}

const Ailments::One* Ailments::find(const std::string& uuid) const {
  auto known = std::find_if(all_.begin(), all_.end(), [&](const One& one) { return one.uuid == uuid; });
  return known != all_.end() ? &*known : nullptr;
}

bool Ailments::saw(const std::string& uuid, bool answered) {
  const bool before = healthy(uuid);
  One& one = of(uuid);
  if (answered && one.silent >= kSilentMax) one.xid = 0;
  one.silent = answered ? 0 : std::min(one.silent + 1, kSilentMax);
  return before != healthy(uuid);
}

bool Ailments::reported(const std::string& uuid, uint64_t xid) {
  if (is_programs_error(xid)) return false;
  const bool before = healthy(uuid);
  of(uuid).xid = xid;
  return before;
}

bool Ailments::answers(const std::string& uuid) const {
  const One* one = find(uuid);
  return one == nullptr || one->silent < kSilentMax;
}

std::string Ailments::reason(const std::string& uuid) const {
  const One* one = find(uuid);
  if (!answers(uuid)) return "NVML gets no answer from it";
  if (one != nullptr && one->xid != 0) return "the driver reported XID " + std::to_string(one->xid);
  return scheduler_answers_ ? "" : "no scheduler answers on this node";
}

// NVML, and what it reports of GPUs.
class HealthWatch::Driver {
 public:
  void close() {
    faults_.reset();
    nvml_.reset();
  }
  bool had_nvml() const { return had_nvml_; }
  const cuda::Nvml* nvml() const { return nvml_ ? &*nvml_ : nullptr; }
  bool has_events() const { return faults_.has_value(); }
  void open(const std::vector<Gpu>& gpus) {
    if (nvml_) return;
    Result<cuda::Nvml> loaded = cuda::Nvml::load();
    if (!loaded) return;
    nvml_.emplace(std::move(*loaded));
    had_nvml_ = true;
    std::vector<cuda::NvmlDevice> devices;  // whole GPUs: MIG devices have no events of their own
    offered_on_.clear();
    for (const Gpu& gpu : gpus) {
      auto device = nvml_->device_by_uuid(gpu.uuid.c_str());
      if (!device) continue;
      const cuda::NvmlDevice whole = nvml_->gpu_of(*device);
      if (std::find(devices.begin(), devices.end(), whole) == devices.end()) devices.push_back(whole);
      offered_on_.emplace_back(whole, gpu);
    }
    Result<cuda::NvmlFaults> faults = cuda::NvmlFaults::watch(*nvml_, devices);
    if (faults) faults_.emplace(std::move(*faults));
    if (!faults && !std::exchange(complained_, true)) spdlog::info("errors of GPUs (XID) are not seen: {}", faults.error().text);
  }
  struct Fault {
    std::vector<Gpu> offered;  // of that GPU
    uint64_t xid = 0;
  };
  // Nothing: none in that time. An error: it cannot be waited.
  Result<std::optional<Fault>> wait(uint32_t milliseconds) {
    auto came = faults_->wait(milliseconds);
    if (!came) return came.error();
    if (!*came) return std::optional<Fault>();
    Fault fault{{}, (*came)->xid};
    for (const auto& [whole, gpu] : offered_on_) {
      if (whole == nvml_->gpu_of((*came)->device)) fault.offered.push_back(gpu);
    }
    return std::optional(std::move(fault));
  }

 private:
  std::optional<cuda::Nvml> nvml_;
  std::optional<cuda::NvmlFaults> faults_;                    // of nvml_, and so goes before it
  std::vector<std::pair<cuda::NvmlDevice, Gpu>> offered_on_;  // a GPU, and what is offered of it
  bool had_nvml_ = false;
  bool complained_ = false;
};

HealthWatch::HealthWatch(Options options, Changed changed)
    : options_(std::move(options)), changed_(std::move(changed)), scheduler_answered_at_(Clock::now()), thread_([this] { run(); }) {}

HealthWatch::~HealthWatch() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

bool HealthWatch::scheduler_answers() {
  auto scheduler = protocol::admin::AdminConnection::open(options_.runtime_dir);
  if (!scheduler) return false;
  protocol::admin::PodsRequest request;
  if (options_.noticed) request.notices_after = noticed_;
  const auto line = scheduler->ask(request, kSchedulerTimeout_ms);
  if (!line) return false;
  const auto notices = protocol::admin::decode_notices(*line);
  if (options_.noticed && notices && !notices->empty()) {
    noticed_ = notices->back().number;
    options_.noticed(*notices);
  }
  return true;
}

void HealthWatch::report() {
  for (const Gpu& gpu : options_.gpus) {
    auto reported = std::find_if(reported_.begin(), reported_.end(), [&](const auto& one) { return one.first == gpu.uuid; });
    if (reported == reported_.end()) reported = reported_.insert(reported_.end(), {gpu.uuid, true});
    const bool healthy = ailments_.healthy(gpu.uuid);
    if (std::exchange(reported->second, healthy) != healthy) changed_(gpu, healthy, ailments_.reason(gpu.uuid));
  }
}

void HealthWatch::rest(Driver& driver) {
  const auto end = Clock::now() + options_.interval;
  Lock lock(mutex_);
  while (!stop_ && driver.has_events() && Clock::now() < end) {
    lock.unlock();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    auto fault = driver.wait(static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, kSlice_ms)));
    const bool waited = static_cast<bool>(fault);
    if (waited && *fault) {
      for (const Gpu& gpu : (*fault)->offered) {
        spdlog::warn("{}: the driver reports XID {}{}", shown(gpu), (*fault)->xid,
                     is_programs_error((*fault)->xid) ? ", which is a program's own error" : "");
        ailments_.reported(gpu.uuid, (*fault)->xid);
      }
      report();
    }
    lock.lock();
    if (!waited) break;
  }
  stopped_.wait_until(mutex_, nanoseconds_of(end), [this]() REQUIRES(mutex_) { return stop_; });
}

void HealthWatch::run() {
  Driver driver;
  while (true) {
    {
      Lock lock(mutex_);
      if (stop_) return;
    }
    // A GPU that was lost may answer only once NVML is initialised anew.
    const auto& gpus = options_.gpus;
    if (!std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return ailments_.answers(gpu.uuid); })) driver.close();
    driver.open(gpus);
    for (const Gpu& gpu : gpus) {
      if (driver.had_nvml()) ailments_.saw(gpu.uuid, driver.nvml() != nullptr && answers(*driver.nvml(), gpu.uuid));
    }
    if (options_.scheduler_patience.count() > 0 || options_.noticed) {
      if (scheduler_answers()) scheduler_answered_at_ = Clock::now();
    }
    if (options_.scheduler_patience.count() > 0) {
      ailments_.scheduler_answers(Clock::now() - scheduler_answered_at_ < options_.scheduler_patience);
    }
    report();
    rest(driver);
  }
}

}  // namespace nvshare::kubernetes
