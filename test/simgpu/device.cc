// Start, versions and what a device says about itself.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "simgpu/config.h"
#include "simgpu/context.h"
#include "simgpu/core.h"

namespace simgpu {
namespace {

struct Attribute {
  int number;
  int value;
};
// CUdevice_attribute, as an H200 answers but for where it is (PCI, vendor); all others are 0.
constexpr int kLastAttribute = 147;
constexpr Attribute kAttributes[] = {
    {1, 1024},    {2, 1024},    {3, 1024},        {4, 64},     {5, 2147483647}, {6, 65535},    {7, 65535},      {8, 49152},
    {9, 65536},   {10, 32},     {11, 2147483647}, {12, 65536}, {13, 1980000},   {14, 512},     {15, 1},         {16, 132},
    {19, 1},      {21, 131072}, {22, 131072},     {23, 65536}, {24, 16384},     {25, 16384},   {26, 16384},     {27, 32768},
    {28, 32768},  {29, 2048},   {30, 512},        {31, 1},     {32, 1},         {36, 3201000}, {37, 6016},      {38, 62914560},
    {39, 2048},   {40, 3},      {41, 1},          {42, 32768}, {43, 2048},      {45, 32768},   {46, 32768},     {47, 8192},
    {48, 8192},   {49, 32768},  {51, 32},         {52, 32768}, {53, 32768},     {54, 2046},    {55, 32768},     {56, 131072},
    {57, 65536},  {58, 16384},  {59, 16384},      {60, 16384}, {61, 32768},     {62, 2048},    {63, 32768},     {64, 32768},
    {65, 2048},   {66, 32768},  {67, 32768},      {68, 2046},  {69, 268435456}, {70, 131072},  {71, 65000},     {72, 2097120},
    {73, 32768},  {74, 32768},  {75, 9},          {77, 32768}, {78, 1},         {79, 1},       {80, 1},         {81, 233472},
    {82, 65536},  {83, 1},      {87, 2},          {89, 1},     {90, 1},         {91, 1},       {95, 1},         {96, 1},
    {97, 232448}, {99, 1},      {102, 1},         {103, 1},    {106, 32},       {107, 1},      {108, 39321600}, {109, 134217728},
    {110, 1},     {111, 1024},  {112, 1},         {113, 1},    {114, 1},        {115, 1},      {116, 1},        {117, 1},
    {118, 100},   {119, 9},     {121, 1},         {122, 1},    {123, 1},        {124, 1},      {125, 1},        {126, 4},
    {127, 1},     {128, 1},     {129, 1},         {131, -1},   {132, 1},        {141, 1},      {142, 1},        {144, 1},
    {145, 1},
};

int bus_of(int device) { return Machine::get().machine_number(device) + 1; }
void bus_id(int device, char* text, size_t size) {
  std::snprintf(text, size, "0000:%02X:00.0", static_cast<unsigned char>(bus_of(device)));
}

CUresult uuid_of(CUuuid* uuid, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Uuid value = Machine::get().uuid(device);
  std::memcpy(uuid->bytes, value.bytes.data(), sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

}  // namespace

bool is_cuda() { return true; }

SIM_API CUresult cuInit(unsigned flags) { return flags != 0 ? CUDA_ERROR_INVALID_VALUE : initialise_process(); }

SIM_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int* count) {
  if (const CUresult result = enter_process()) return result;
  *count = Machine::get().device_count();
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "nvshare stand-in GPU");
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return uuid_of(uuid, device); }
SIM_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return uuid_of(uuid, device); }

SIM_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Machine::get().memory(device).total;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || attribute == 0 || static_cast<int>(attribute) > kLastAttribute) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == 33 ? bus_of(device) : 0;  // the PCI bus
  for (const Attribute& known : kAttributes) {
    if (known.number == static_cast<int>(attribute)) *value = known.value;
  }
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (text == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
  bus_id(device, text, static_cast<size_t>(length));
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  if (const CUresult result = enter_process()) return result;
  for (int i = 0; i < Machine::get().device_count(); ++i) {
    char id[16];
    bus_id(i, id, sizeof id);
    if (std::strstr(text, id + 5) == nullptr) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  unsigned domain = 0, bus = 0, slot = 0;
  const bool well_formed = std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3 || std::sscanf(text, "%x:%x", &bus, &slot) == 2;
  return well_formed ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && !config().no_peers ? 1 : 0;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_INVALID_VALUE;  // as for one that is not known: undocumented interfaces between NVIDIA's own libraries
}

}  // namespace simgpu
