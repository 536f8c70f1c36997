#include "simgpu/visible.h"

#include <cstdlib>

#include "simgpu/testing.h"

extern "C" {
int nvmlInit_v2();
int nvmlShutdown();
int nvmlDeviceGetCount_v2(unsigned*);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**);
int nvmlDeviceGetMinorNumber(void*, unsigned*);
}

namespace simgpu_testing {
namespace {

using simgpu::chosen_by_program;
using simgpu::given_by_runtime;
using simgpu::Uuid;
using Devices = std::vector<int>;

// GPU-0a000000-..., GPU-0b000000-..., GPU-1a000000-...
const std::vector<Uuid> kUuids = {Uuid{{0x0a}}, Uuid{{0x0b}}, Uuid{{0x1a}}};

TEST(Visible, ARuntimeGivesWhatItsListNames) {
  const Devices all = {0, 1, 2};
  for (const char* list : {"", "void", "all"}) EXPECT_EQ(given_by_runtime(list, kUuids), all) << list;
  EXPECT_EQ(given_by_runtime("none", kUuids), Devices{});
  EXPECT_EQ(given_by_runtime("2,0", kUuids), (Devices{0, 2})) << "in the machine's order";
  EXPECT_EQ(given_by_runtime(to_text(kUuids[1]), kUuids), Devices{1});
  EXPECT_EQ(given_by_runtime("1,1," + to_text(kUuids[1]), kUuids), Devices{1});
  EXPECT_EQ(given_by_runtime("7,GPU-ff", kUuids), Devices{});
  EXPECT_EQ(given_by_runtime("MIG-0a000000", kUuids), Devices{0});
}

TEST(Visible, AProgramChoosesAndOrders) {
  const Devices given = {0, 2};
  EXPECT_EQ(chosen_by_program(nullptr, given, kUuids), given);
  EXPECT_EQ(chosen_by_program("", given, kUuids), Devices{});
  EXPECT_EQ(chosen_by_program("1,0", given, kUuids), (Devices{2, 0}));
  EXPECT_EQ(chosen_by_program("1,-1,0", given, kUuids), Devices{2}) << "up to the first that is wrong";
  EXPECT_EQ(chosen_by_program("2", given, kUuids), Devices{}) << "the container has two";
  EXPECT_EQ(chosen_by_program("1,1", given, kUuids), Devices{}) << "named twice";
  EXPECT_EQ(chosen_by_program("GPU-1a", given, kUuids), Devices{2});
  EXPECT_EQ(chosen_by_program("GPU-0b", given, kUuids), Devices{}) << "not given";
  EXPECT_EQ(chosen_by_program("GPU-0", Devices({0, 1, 2}), kUuids), Devices{}) << "it begins two";
}

class VisibleDevices : public GpuTest {};

// Says which PCI buses CUDA has, and which device files NVML.
int look() {
  int count = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) {
    say("no device");
    return 0;
  }
  std::string seen;
  for (int i = 0; i < count; ++i) {
    int bus = 0;
    cuDeviceGetAttribute(&bus, static_cast<CUdevice_attribute>(33), i);
    seen += std::to_string(bus) + " ";
  }
  unsigned files = 0;
  nvmlInit_v2();
  nvmlDeviceGetCount_v2(&files);
  seen += "nvml";
  for (unsigned i = 0; i < files; ++i) {
    void* handle = nullptr;
    unsigned minor = 0;
    nvmlDeviceGetHandleByIndex_v2(i, &handle);
    nvmlDeviceGetMinorNumber(handle, &minor);
    seen += " " + std::to_string(minor);
  }
  nvmlShutdown();
  say(seen);
  return 0;
}
const bool kLook = add_role("look", look);

// The third of four GPUs by the runtime's number, with three given: the program's is the first of them.
TEST_F(VisibleDevices, AreNumberedAnewInEachProcess) {
  const std::string state = std::string(std::getenv("SIMGPU_STATE")) + "-four";
  const std::vector<std::string> machine = {"SIMGPU_COUNT=4", "SIMGPU_STATE=" + state};
  const auto seen = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), machine.begin(), machine.end());
    Other other("look", settings);
    const std::string word = other.word();
    EXPECT_EQ(0, other.wait());
    return word;
  };
  EXPECT_EQ(seen({}), "1 2 3 4 nvml 0 1 2 3");
  EXPECT_EQ(seen({"NVIDIA_VISIBLE_DEVICES=3,1,2"}), "2 3 4 nvml 1 2 3");
  EXPECT_EQ(seen({"NVIDIA_VISIBLE_DEVICES=3,1,2", "CUDA_VISIBLE_DEVICES=2,0"}), "4 2 nvml 1 2 3");
  EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES="}), "no device");
  EXPECT_EQ(seen({"NVIDIA_VISIBLE_DEVICES=none"}), "no device");
  unlink(state.c_str());
}

// Holds 20 MiB of its only GPU, and hands them over.
int hold_one() {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS || cuMemAlloc_v2(&memory, 20 * kMiB) != CUDA_SUCCESS)
    return 1;
  CUipcMemHandle handle;
  if (cuIpcGetMemHandle(&handle, memory) != CUDA_SUCCESS) return 2;
  std::string text;
  for (const char byte : handle.reserved) text += std::to_string(static_cast<unsigned char>(byte)) + ",";
  say(text);
  hear();
  return 0;
}
const bool kHoldOne = add_role("hold_one", hold_one);

// How much each of its GPUs has in use, and what comes of opening what it hears of.
int look_at_use() {
  int count = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) return 1;
  const std::string text = hear();
  std::string seen;
  for (int i = 0; i < count; ++i) {
    CUcontext context = nullptr;
    size_t free = 0, total = 0;
    if (cuCtxCreate_v2(&context, 0, i) != CUDA_SUCCESS || cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return 2;
    seen += std::to_string((total - free) / kMiB) + " ";
  }
  CUipcMemHandle handle;
  const char* at = text.c_str();
  for (char& byte : handle.reserved) {
    char* end = nullptr;
    byte = static_cast<char>(std::strtoul(at, &end, 10));
    at = end + 1;
  }
  CUdeviceptr memory = 0;
  int device = -1;
  const CUresult opened = cuIpcOpenMemHandle_v2(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (opened == CUDA_SUCCESS) cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory);
  say(seen + std::to_string(opened) + " " + std::to_string(device));
  return 0;
}
const bool kLookAtUse = add_role("look_at_use", look_at_use);

TEST_F(VisibleDevices, AreTheSameGpusToAll) {
  const std::string state = std::string(std::getenv("SIMGPU_STATE")) + "-two";
  const auto with = [&](const char* setting) { return std::vector<std::string>{setting, "SIMGPU_COUNT=2", "SIMGPU_STATE=" + state}; };
  Other holder("hold_one", with("CUDA_VISIBLE_DEVICES=1"));
  const std::string handle = holder.word();
  const auto looked = [&](const char* setting) {
    Other other("look_at_use", with(setting));
    other.tell(handle);
    const std::string word = other.word();
    EXPECT_EQ(0, other.wait());
    return word;
  };
  // Contexts take 4 MiB each.
  EXPECT_EQ(looked("CUDA_VISIBLE_DEVICES=0,1"), "4 28 0 1");
  EXPECT_EQ(looked("CUDA_VISIBLE_DEVICES=1,0"), "28 4 0 0");
  EXPECT_EQ(looked("CUDA_VISIBLE_DEVICES=0"), "4 101 -1") << "what it does not see cannot be opened";
  holder.tell("end");
  EXPECT_EQ(0, holder.wait());
  unlink(state.c_str());
}

}  // namespace
}  // namespace simgpu_testing
