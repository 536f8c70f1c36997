// What the device plugin's advice costs: 8 GPUs with 10 virtual devices each, and 8 x 141 units of memory. Bound asked for: 5 ms.
#include <benchmark/benchmark.h>

#include "kubernetes/devices/preference.h"

namespace {

using namespace nvshare::kubernetes;

std::vector<Gpu> eight_gpus() {
  std::vector<Gpu> gpus;
  for (int i = 0; i < 8; ++i) gpus.push_back({"GPU-01234567-89ab-cdef-0123-45678901234" + std::to_string(i), 141LL << 30, true});
  return gpus;
}

std::vector<std::string> ids_of(const std::vector<Device>& devices) {
  std::vector<std::string> ids;
  for (const Device& device : devices) ids.push_back(device.id);
  return ids;
}

// A node whose GPUs are half full, 40 containers; the list is read, the loads are computed, the devices chosen.
DeviceAllocations half_full() {
  Division division;
  DeviceAllocations allocations(division, eight_gpus());
  std::vector<HeldDevices> listed;
  for (int i = 0; i < 40; ++i) {
    HeldDevices held{
        "default", "pod" + std::to_string(i), "main", {virtual_gpu_id(eight_gpus()[static_cast<size_t>(i % 8)].uuid, i / 8)}, {}, {}};
    for (int unit = 0; unit < 14; ++unit) held.memory.insert(unit_id(Resource::kMemory, i * 14 + unit));
    listed.push_back(held);
  }
  allocations.update(listed);
  return allocations;
}

void prefer_virtual_gpus(benchmark::State& state) {
  DeviceAllocations allocations = half_full();
  std::vector<std::string> available = ids_of(virtual_gpus(allocations.gpus(), allocations.division()));
  for (auto _ : state) benchmark::DoNotOptimize(prefer_gpus(allocations.loads(), available, {}, static_cast<int>(state.range(0))));
}
BENCHMARK(prefer_virtual_gpus)->Arg(1)->Arg(8)->Unit(benchmark::kMicrosecond);

void prefer_memory(benchmark::State& state) {
  DeviceAllocations allocations = half_full();
  std::vector<std::string> available = ids_of(units(Resource::kMemory, allocations.gpus(), allocations.division(), {}));
  for (auto _ : state) benchmark::DoNotOptimize(prefer_units(available, {}, static_cast<int>(state.range(0))));
}
BENCHMARK(prefer_memory)->Arg(4)->Arg(141)->Unit(benchmark::kMicrosecond);

void take_over_a_list(benchmark::State& state) {
  DeviceAllocations allocations = half_full();
  for (auto _ : state) allocations.update(std::vector<HeldDevices>(allocations.listed()));
}
BENCHMARK(take_over_a_list)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
