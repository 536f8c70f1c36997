// What pointer queries answer for plain memory, for mapped and unmapped VMM memory, for managed and for registered host memory. The library
// must give its VMM memory the answers of plain memory.
#include <sys/mman.h>

#include "probe.h"
#include "vmm.h"

namespace gputest {
namespace {

struct Attribute {
  int number;
  const char* name;
};

constexpr Attribute kAttributes[] = {
    {1, "context"},
    {2, "memory_type"},
    {3, "device_pointer"},
    {4, "host_pointer"},
    {6, "sync_memops"},
    {7, "buffer_id"},
    {8, "is_managed"},
    {9, "device_ordinal"},
    {10, "legacy_ipc_capable"},
    {11, "range_start"},
    {12, "range_size"},
    {13, "mapped"},
    {14, "allowed_handle_types"},
    {15, "gpu_direct_rdma_capable"},
    {16, "access_flags"},
    {17, "mempool"},
    {18, "mapping_size"},
    {19, "mapping_base"},
    {20, "memory_block_id"},
};

// One line: {"probe": "pointers", "memory": <label>, "attributes": {name: [result, value], ...}, "address_range": [...], "ipc": result}
void describe(const char* label, CUdeviceptr pointer) {
  const Driver& d = driver();
  std::printf("{\"probe\": \"pointers\", \"memory\": \"%s\", \"pointer\": \"0x%llx\", \"attributes\": {", label, pointer);
  const char* separator = "";
  for (const Attribute& attribute : kAttributes) {
    uint64_t value[4] = {0, 0, 0, 0};  // larger than any of them
    const CUresult result = d.pointer_get_attribute(&value, attribute.number, pointer);
    std::printf("%s\"%s\": [%d, \"0x%llx\"]", separator, attribute.name, result, static_cast<unsigned long long>(value[0]));
    separator = ", ";
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  const CUresult range = d.mem_get_address_range(&base, &size, pointer);
  IpcMemHandle handle{};
  const CUresult ipc = d.ipc_get_mem_handle(&handle, pointer);
  std::printf("}, \"address_range\": [%d, \"0x%llx\", %zu], \"ipc_get_mem_handle\": %d", range, base, size, ipc);
  unsigned on = 1;
  std::printf(", \"set_sync_memops\": %d}\n", d.pointer_set_attribute(&on, 6, pointer));
}

}  // namespace

void probe_pointers(const Options&) {
  const Driver& d = driver();
  open_gpu();
  constexpr size_t kChunk = 64u << 20;
  CUdeviceptr plain = 0;
  require(d.mem_alloc(&plain, 3 * kChunk), "cuMemAlloc");
  describe("plain", plain);
  describe("plain, 1 MiB inside", plain + (1u << 20));
  CUdeviceptr small[3] = {0, 0, 0};
  for (CUdeviceptr& each : small) {
    require(d.mem_alloc(&each, 1000), "cuMemAlloc");
  }
  std::printf("{\"probe\": \"pointers\", \"small_spacing_bytes\": [%lld, %lld]}\n", static_cast<long long>(small[1] - small[0]),
              static_cast<long long>(small[2] - small[1]));
  describe("plain 1000 bytes", small[1]);

  VmmRange range(3 * kChunk);
  describe("reserved, never mapped", range.base());
  range.map(0, kChunk);
  range.map(kChunk, kChunk);
  describe("vmm mapped", range.base());
  describe("vmm mapped, second handle", range.base() + kChunk + 4096);
  describe("vmm, third handle not mapped yet", range.base() + 2 * kChunk);
  range.unmap(0, kChunk);
  describe("vmm unmapped again", range.base());
  describe("vmm, neighbour still mapped", range.base() + kChunk);
  range.unmap(kChunk, kChunk);
  require(d.mem_free(plain), "cuMemFree");
  describe("plain, freed", plain);

  CUdeviceptr managed = 0;
  if (d.mem_alloc_managed != nullptr && d.mem_alloc_managed(&managed, kChunk, 1) == kSuccess) {
    describe("managed", managed);
    d.mem_free(managed);
  }
  void* host = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  describe("pageable host", reinterpret_cast<CUdeviceptr>(host));
  require(d.mem_host_register(host, kChunk, 0), "cuMemHostRegister");
  describe("registered host", reinterpret_cast<CUdeviceptr>(host));
  d.mem_host_unregister(host);
  munmap(host, kChunk);
}

}  // namespace gputest
