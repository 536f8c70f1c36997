// Legacy IPC of plain memory, and allocations of pools that were made to be shared: the exporter's pages become a file that the importer
// opens through /proc. Virtual memory cannot be handed over in this way.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

struct Token {
  char magic[8];
  uint64_t pid;
  uint32_t fd;
  uint32_t pool;  // its number in that process; 0: plain memory
  uint64_t file_bytes;
  uint64_t offset;  // of the allocation in the file
  uint64_t bytes;
  uint64_t device;
  uint64_t inode;  // of the file: the descriptor's number may be in use again
};
static_assert(sizeof(Token) == sizeof(CUipcMemHandle) && sizeof(Token) == sizeof(CUmemPoolPtrExportData));
constexpr char kMagic[8] = {'s', 'i', 'm', 'i', 'p', 'c', '1', 0};

// Which of this process's pages are files, by address, and what it has opened of others.
struct Shared {
  std::mutex files_mutex;  // nothing else is taken with it held
  std::map<uint64_t, int> files;
  std::mutex mutex;  // before the address space's
  struct Opened {
    Token token;
    Context* context;
    unsigned references;
    uint64_t mapped;  // where the file begins
  };
  std::map<uint64_t, Opened> opened;  // by the address that the program has
  static Shared& get() {
    static auto* const kShared = new Shared;
    return *kShared;
  }
};

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// The same bytes at the same address, from a file. Nothing else looks at them meanwhile: the address space is held.
int make_file(uint64_t base, uint64_t bytes) {
  const int fd = memfd_create("simgpu-plain", MFD_CLOEXEC);
  if (fd < 0) return -1;
  bool ok = ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  for (uint64_t done = 0; ok && done < bytes;) {
    const ssize_t count = pwrite(fd, pointer(base + done), bytes - done, static_cast<off_t>(done));
    ok = count > 0;
    if (ok) done += static_cast<uint64_t>(count);
  }
  ok = ok && mmap(pointer(base), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (ok) return fd;
  close(fd);
  return -1;
}

uint64_t inode_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// With shared.mutex held.
CUresult map_token(Shared& shared, Context* context, const Token& token, void* pool, CUdeviceptr* out) {
  const int device = Machine::get().device_of(token.device);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  const int fd = open(("/proc/" + std::to_string(token.pid) + "/fd/" + std::to_string(token.fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || inode_of(fd) != token.inode) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const uint64_t mapped = map_memory(token.file_bytes, kPageBytes);
  const bool there =
      mapped != 0 && mmap(pointer(mapped), token.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  close(fd);
  if (!there) return CUDA_ERROR_MAP_FAILED;
  Range range;
  range.kind = RangeKind::kImported;
  range.base = mapped + token.offset;
  range.size = token.bytes;
  range.device = device;
  range.context = context;
  range.pool = pool;
  *out = range.base;
  shared.opened[range.base] = {token, context, 1, mapped};
  AddressSpace::Writing writing(here().memory);
  writing.add(std::move(range));
  return CUDA_SUCCESS;
}

CUresult open_memory(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags) {
  Context* context = nullptr;
  const CUresult entered = enter(&context);
  // Of a context that is gone the flags are looked at first (measured).
  if (entered == CUDA_ERROR_CONTEXT_IS_DESTROYED && flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (entered != CUDA_SUCCESS) return entered;
  Token token;
  std::memcpy(&token, &handle, sizeof token);
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(token.magic, kMagic, sizeof kMagic) != 0 || token.pool != 0) return CUDA_ERROR_INVALID_VALUE;
  if (token.pid == static_cast<uint64_t>(getpid())) return CUDA_ERROR_INVALID_CONTEXT;
  Shared& shared = Shared::get();
  std::lock_guard lock(shared.mutex);
  if (context->parent != nullptr) context = context->parent;  // a green context has no memory of its own
  // Of a process's contexts on a GPU one opens what another process hands over of a GPU (measured).
  for (const auto& [address, opened] : shared.opened) {
    const bool same_way = opened.token.pid == token.pid && opened.token.device == token.device && opened.token.pool == 0;
    if (same_way && opened.context != context && opened.context->device == context->device) return CUDA_ERROR_INVALID_HANDLE;
  }
  for (auto& [address, opened] : shared.opened) {
    if (opened.context != context || std::memcmp(&opened.token, &token, sizeof token) != 0) continue;
    ++opened.references;
    *out = address;
    return CUDA_SUCCESS;
  }
  return map_token(shared, context, token, nullptr, out);
}

// The token of the allocation of that kind that the address lies in; `pool` is its pool's number.
CUresult make_token(CUdeviceptr address, RangeKind kind, uint32_t pool, Token* token) {
  Shared& shared = Shared::get();
  AddressSpace::Writing writing(here().memory);
  std::lock_guard lock(shared.files_mutex);
  const Range* range = writing.find(address);
  if (range == nullptr || range->kind != kind) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base = range->owned != 0 ? range->base : range->base / kPageBytes * kPageBytes;
  const uint64_t bytes = range->owned != 0 ? range->owned : kPageBytes;
  auto file = shared.files.find(base);
  if (file == shared.files.end()) {
    const int fd = make_file(base, bytes);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    file = shared.files.emplace(base, fd).first;
  }
  *token = {};
  std::memcpy(token->magic, kMagic, sizeof kMagic);
  token->pid = static_cast<uint64_t>(getpid());
  token->fd = static_cast<uint32_t>(file->second);
  token->pool = pool;
  token->file_bytes = bytes;
  token->offset = range->base - base;
  token->bytes = range->size;
  token->device = static_cast<uint64_t>(Machine::get().machine_number(range->device));
  token->inode = inode_of(file->second);
  return CUDA_SUCCESS;
}

}  // namespace

void forget_shared(uint64_t address) {
  Shared& shared = Shared::get();
  std::lock_guard lock(shared.files_mutex);
  const auto found = shared.files.find(address);
  if (found == shared.files.end()) return;
  close(found->second);
  shared.files.erase(found);
}

CUresult export_pool_pointer(CUdeviceptr address, uint32_t pool, CUmemPoolPtrExportData* out) {
  Token token;
  if (const CUresult result = make_token(address, RangeKind::kPool, pool, &token)) return result;
  std::memcpy(out, &token, sizeof token);
  return CUDA_SUCCESS;
}

CUresult import_pool_pointer(const CUmemPoolPtrExportData& data, uint64_t exporter, uint32_t number, void* pool, CUdeviceptr* out) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  Token token;
  std::memcpy(&token, &data, sizeof token);
  if (std::memcmp(token.magic, kMagic, sizeof kMagic) != 0 || token.pid != exporter || token.pool != number) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Shared& shared = Shared::get();
  std::lock_guard lock(shared.mutex);
  return map_token(shared, context, token, pool, out);
}

CUresult free_imported(CUdeviceptr address) {
  Shared& shared = Shared::get();
  std::lock_guard lock(shared.mutex);
  const auto found = shared.opened.find(address);
  if (found == shared.opened.end()) return CUDA_ERROR_INVALID_VALUE;
  AddressSpace::Writing writing(here().memory);
  writing.ranges().erase(address);
  munmap(pointer(found->second.mapped), found->second.token.file_bytes);
  shared.opened.erase(found);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context); result != CUDA_SUCCESS) {
    return address == 0 && result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_VALUE : result;
  }
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Token token;
  if (const CUresult result = make_token(address, RangeKind::kPlain, 0, &token)) return result;
  std::memcpy(out, &token, sizeof token);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) { return open_memory(out, handle, flags); }
SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) { return open_memory(out, handle, flags); }

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  {
    Shared& shared = Shared::get();
    std::lock_guard lock(shared.mutex);
    const auto found = shared.opened.find(address);
    if (found == shared.opened.end() || found->second.token.pool != 0) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references > 0) return CUDA_SUCCESS;
    drain(*found->second.context);
  }
  return free_imported(address);
}

}  // namespace simgpu
