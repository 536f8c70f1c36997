// NVML as the stand-in GPU offers it: what is found, who is seen, and that the dead vanish.
#include "scheduler/gpus/nvml_monitor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kAllocated = 64 << 20;

// A process that has a context and memory on the stand-in GPU; says so through a pipe, then lives until killed.
[[noreturn]] void use_memory(int ready) {
  void* driver = dlopen(STAND_IN "/libcuda.so.1", RTLD_NOW);
  auto call = [&](const char* name, auto... arguments) {
    auto* function = driver != nullptr ? reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name)) : nullptr;
    if (function == nullptr || function(arguments...) != 0) _exit(1);
  };
  int device = 0;
  void* context = nullptr;
  unsigned long long memory = 0;
  call("cuInit", 0U);
  call("cuDeviceGet", &device, 0);
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  call("cuMemAlloc_v2", &memory, kAllocated);
  if (write(ready, "r", 1) != 1) _exit(1);
  while (true) pause();
}

TEST(NvmlMonitor, SeesTheGpuItsUsersAndTheirEnd) {
  TestFolder folder;
  setenv("SIMGPU_STATE", (folder.path() + "/state").c_str(), 1);
  setenv("SIMGPU_MEMORY_MB", "512", 1);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t user = fork();
  if (user == 0) use_memory(ready[1]);
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the stand-in's user failed";
  close(ready[0]);

  auto nvml = cuda::Nvml::load(STAND_IN "/libnvidia-ml.so.1");
  ASSERT_TRUE(nvml) << nvml.error().text;
  EventLoop loop;
  bool seen = false;
  bool gone = false;
  int64_t used = 0;
  NvmlMonitor monitor(std::move(*nvml), loop, [&](const std::vector<GpuSample>& samples) {
    ASSERT_EQ(samples.size(), 1u);
    bool listed = false;
    for (const ProcessMemory& process : samples[0].processes) {
      if (process.pid != user) continue;
      listed = true;
      EXPECT_GE(process.used, static_cast<int64_t>(kAllocated));
    }
    EXPECT_GE(samples[0].used_after, listed ? static_cast<int64_t>(kAllocated) : 0);
    if (listed && !seen) {
      seen = true;
      used = samples[0].used_after;
      kill(user, SIGKILL);
      waitpid(user, nullptr, 0);
    } else if (!listed && seen) {
      gone = true;
      EXPECT_LT(samples[0].used_before, used);
      loop.stop();
    }
  });
  ASSERT_EQ(monitor.gpus().size(), 1u);
  EXPECT_GT(monitor.gpus()[0].total, 256 << 20);
  EXPECT_LE(monitor.gpus()[0].total, 512 << 20);
  EXPECT_FALSE(monitor.gpus()[0].name.empty());
  Timer patience(loop, [&] { loop.stop(); });
  patience.arm(monotonic_ns() + std::chrono::nanoseconds(kPatience).count());
  monitor.watch({monitor.gpus()[0].uuid}, {}, 10'000'000);
  loop.run();
  EXPECT_TRUE(seen);
  EXPECT_TRUE(gone);
}

TEST(Nvml, ItsAbsenceIsAnErrorThatSaysSo) {
  auto nvml = cuda::Nvml::load("/nonexistent/libnvidia-ml.so.1");
  ASSERT_FALSE(nvml);
  EXPECT_NE(std::string(nvml.error().text).find("no NVML"), std::string::npos);
}

TEST(Nvml, UuidsAreReadAndWritten) {
  const char* text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
  std::array<uint8_t, 16> uuid{};
  ASSERT_TRUE(cuda::parse_uuid(text, uuid));
  EXPECT_EQ(uuid[0], 0x01);
  EXPECT_EQ(uuid[15], 0xef);
  char again[cuda::kUuidTextBytes];
  cuda::format_uuid(uuid, again);
  EXPECT_STREQ(again, text);
  for (const char* wrong : {"", "GPU-", "GPU-01234567-89ab-cdef-0123-456789abcde", "GPU-01234567-89ab-cdef-0123-456789abcdefa", "GPU-x"}) {
    EXPECT_FALSE(cuda::parse_uuid(wrong, uuid)) << wrong;
  }
}

}  // namespace
}  // namespace nvshare::scheduler
