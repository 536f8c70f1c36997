#include "interposer/process/ipc.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "interposer/log.h"
#include "interposer/memory/backends/access.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUipcMemHandle;
using cuda::CUresult;
using protocol::ExportStatus;

namespace {

constexpr char kMagic[8] = "nvshare";
constexpr uint32_t kTokenVersion = 1;
constexpr uint64_t kImportedIds = uint64_t{1} << 40;      // apart from those of the program's own allocations
constexpr int64_t kExporterPatience_ns = 10'000'000'000;  // for the exporter's answer: it may be stopped

bool is_ours(const IpcToken& token) { return memcmp(token.magic, kMagic, sizeof kMagic) == 0; }

// The allocation lies within its block, of so many bytes.
bool lies_in(const IpcToken& token, uint64_t bytes) { return token.offset <= bytes && token.bytes <= bytes - token.offset; }

bool same_block(const IpcToken& a, const IpcToken& b) {
  return a.exporter == b.exporter && a.export_id == b.export_id && memcmp(a.nonce, b.nonce, sizeof a.nonce) == 0;
}

}  // namespace

bool Ipc::is_own(const IpcToken& token) {
  bool own = false;
  process_.for_each_device([&](Device& device) { own = own || device.link().id() == token.exporter; });
  return own;
}

// ---- exporting ----

bool Ipc::export_memory(CUipcMemHandle* handle, CUdeviceptr address, CUresult* result) {
  AllocationRange range;
  Device* owner = process_.owner(address, &range);
  if (owner == nullptr || handle == nullptr || !owner->link().shared()) return false;
  IpcToken token{};
  memcpy(token.magic, kMagic, sizeof kMagic);
  token.version = kTokenVersion;
  token.exporter = owner->link().id();
  if (!owner->memory().exports.begin(address, &token, result)) return false;
  if (*result == cuda::CUDA_SUCCESS) memcpy(handle, &token, sizeof token);
  return true;
}

void Ipc::on_export_wanted(Device& device, const protocol::ExportWanted& message) {
  protocol::Exported answer{};
  answer.ticket = message.ticket;
  do {
    Descriptors descriptors;
    const ExportStatus status = device.memory().exports.chunks(message, &answer, &descriptors);
    answer.status = static_cast<uint8_t>(status);
    if (status != ExportStatus::kOk) {
      log(LogLevel::kWarning, "another process asks for memory that %s",
          status == ExportStatus::kUnknown ? "this one does not export (any more)" : "the driver gives no descriptor of");
      device.link().send(answer);
      return;
    }
    device.link().send(answer, descriptors);
    answer.first += static_cast<uint32_t>(descriptors.count());
  } while (answer.first < answer.chunks);
}

// ---- importing ----

Ipc::Import* Ipc::find_import(CUdeviceptr address) {
  for (Import& import : imports_) {
    if (address - import.base < import.bytes) return &import;
  }
  return nullptr;
}

Ipc::Import* Ipc::find_import(const IpcToken& token, CUcontext context) {
  for (Import& import : imports_) {
    if (import.context == context && same_block(import.token, token)) return &import;
  }
  return nullptr;
}

bool Ipc::is_open_elsewhere(const IpcToken& token, int user, CUcontext context) const {
  return std::any_of(imports_.begin(), imports_.end(), [&](const Import& import) {
    return import.token.exporter == token.exporter && import.user == user && import.context != context;
  });
}

bool Ipc::open(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags, CUresult* result) {
  IpcToken token;
  memcpy(&token, &handle, sizeof token);
  if (!is_ours(token)) return false;
  CUcontext context = nullptr;
  Device* device = process_.current_device(&context);
  *result = cuda::CUDA_ERROR_INVALID_VALUE;
  if (address == nullptr || flags != cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || token.version != kTokenVersion) return true;
  *result = cuda::CUDA_ERROR_INVALID_CONTEXT;  // also what the driver says of a process's own handle
  if (device == nullptr || is_own(token)) return true;
  if (!device->link().shared()) {
    log(LogLevel::kError,
        "memory of another process cannot be opened: it was handed over under nvshare, and this process has no scheduler");
    *result = cuda::CUDA_ERROR_INVALID_HANDLE;
    return true;
  }
  settle_imports(process_);
  Lock lock(mutex_);
  while (opening_) changed_.wait(mutex_);
  *result = cuda::CUDA_ERROR_INVALID_HANDLE;
  if (is_open_elsewhere(token, device->ordinal(), context)) return true;
  Import* import = find_import(token, context);
  if (import == nullptr) {
    import = import_block(*device, token, context, result);
  } else if (!lies_in(token, import->bytes)) {
    import = nullptr;
  }
  if (import == nullptr) return true;
  open_slice(*import, token);
  *address = import->base + token.offset;
  *result = cuda::CUDA_SUCCESS;
  return true;
}

Ipc::Import* Ipc::import_block(Device& device, const IpcToken& token, CUcontext context, CUresult* result) {
  opening_ = true;
  *result = fetch(device, token);
  Import fresh{
      token, &device, pending_.request, context, device.ordinal(), 0, 0, pending_.bytes, pending_.chunk_bytes, 0, pending_.inherited, 0,
      0,     {}};
  std::vector<cuda::CUmemGenericAllocationHandle> handles = std::move(pending_.handles);
  const bool arrived = *result == cuda::CUDA_SUCCESS;
  if (arrived && !lies_in(token, fresh.bytes)) *result = cuda::CUDA_ERROR_INVALID_HANDLE;
  if (*result == cuda::CUDA_SUCCESS) *result = map(&fresh, handles);
  for (auto physical : handles) real_driver().cuMemRelease(physical);  // the mapping keeps it
  pending_ = Pending{};
  opening_ = false;
  changed_.notify_all();
  if (*result == cuda::CUDA_SUCCESS) {
    imports_.push_back(std::move(fresh));
    return &imports_.back();
  }
  mutex_.unlock();
  if (arrived) log(LogLevel::kError, "memory of another process cannot be mapped (CUDA error %d)", static_cast<int>(*result));
  let_go(fresh);
  mutex_.lock();
  return nullptr;
}

void Ipc::open_slice(Import& import, const IpcToken& token) {
  ++import.references;
  auto same = std::find_if(import.slices.begin(), import.slices.end(), [&](const Import::Slice& s) { return s.offset == token.offset; });
  if (same == import.slices.end()) {
    import.slices.push_back({++last_slice_, token.offset, token.bytes, 1, false});
  } else {
    ++same->references;
    same->bytes = token.bytes;  // another allocation may lie there by now
  }
}

CUresult Ipc::fetch(Device& device, const IpcToken& token) {
  pending_ = Pending{};
  pending_.device = &device;
  pending_.request = ++last_request_;
  protocol::Import message{};
  message.request = pending_.request;
  message.exporter = token.exporter;
  message.export_id = token.export_id;
  memcpy(message.nonce, token.nonce, sizeof message.nonce);
  mutex_.unlock();
  const bool sent = device.link().send(message);
  mutex_.lock();
  if (!sent) {
    pending_.done = true;
    pending_.status = ExportStatus::kFailed;
  }
  const int64_t deadline = now_ns() + kExporterPatience_ns;
  while (!pending_.done && changed_.wait_until(mutex_, deadline)) {
  }
  const char* why = "the process that exported it does not answer";
  if (pending_.done) {
    switch (pending_.status) {
      case ExportStatus::kOk:
        return cuda::CUDA_SUCCESS;
      case ExportStatus::kUnknown:
        why = "it is not there any more";
        break;
      case ExportStatus::kRefused:
        log(LogLevel::kError, "memory of another process cannot be opened: it belongs to another tenant");
        return cuda::CUDA_ERROR_NOT_PERMITTED;
      case ExportStatus::kFailed:
        why = "it could not be handed over";
        break;
    }
  }
  log(LogLevel::kError, "memory of another process cannot be opened: %s", why);
  return cuda::CUDA_ERROR_INVALID_HANDLE;
}

void Ipc::on_imported(Device& device, const protocol::Imported& message, const Descriptors& descriptors) {
  Lock lock(mutex_);
  if (pending_.device != &device || pending_.request != message.request || pending_.done) return;
  pending_.status = static_cast<ExportStatus>(message.status);
  pending_.bytes = message.bytes;
  pending_.chunk_bytes = message.chunk_bytes;
  pending_.chunks = message.chunks;
  if (pending_.status == ExportStatus::kOk) {
    bool whole = descriptors.count() > 0 && message.first == pending_.handles.size();
    for (int i = 0; i < descriptors.count() && whole; ++i) {
      cuda::CUmemGenericAllocationHandle handle = 0;
      whole = real_driver().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptors.get(i))),
                                                           cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == cuda::CUDA_SUCCESS;
      if (whole) pending_.handles.push_back(handle);
    }
    if (!whole) pending_.status = ExportStatus::kFailed;
  }
  pending_.done = pending_.status != ExportStatus::kOk || pending_.handles.size() >= message.chunks;
  if (pending_.done) changed_.notify_all();
}

void Ipc::on_disconnected(Device& device) {
  Lock lock(mutex_);
  if (pending_.device != &device || pending_.done) return;
  pending_.status = ExportStatus::kFailed;
  pending_.done = true;
  changed_.notify_all();
}

CUresult Ipc::map(Import* import, const std::vector<cuda::CUmemGenericAllocationHandle>& handles) {
  const RealDriver& driver = real_driver();
  cuda::CUmemAllocationProp properties{};
  CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, handles.front());
  if (result != cuda::CUDA_SUCCESS) return result;
  import->ordinal = properties.location.id;
  result = driver.cuMemAddressReserve(&import->base, import->bytes, 0, 0, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  size_t mapped = 0;
  for (auto handle : handles) {
    const size_t bytes = std::min(import->chunk_bytes, import->bytes - mapped);
    result = driver.cuMemMap(import->base + mapped, bytes, 0, handle, 0);
    if (result != cuda::CUDA_SUCCESS) break;
    mapped += bytes;
  }
  if (result == cuda::CUDA_SUCCESS) result = set_access(*import, process_.peers.accessors(import->ordinal));
  if (result == cuda::CUDA_SUCCESS) return result;
  if (mapped > 0) driver.cuMemUnmap(import->base, mapped);
  driver.cuMemAddressFree(import->base, import->bytes);
  return result;
}

CUresult Ipc::set_access(Import& import, uint32_t accessors) {
  accessors |= 1u << import.user | import.opened_to;
  CUresult result = grant_access(import.base, import.bytes, accessors, import.accessors);
  if (result == cuda::CUDA_SUCCESS) import.accessors = accessors;
  return result;
}

void Ipc::unmap(const Import& import) {
  const RealDriver& driver = real_driver();
  CUresult result = driver.cuMemUnmap(import.base, import.bytes);
  if (result == cuda::CUDA_SUCCESS) result = driver.cuMemAddressFree(import.base, import.bytes);
  if (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_DEINITIALIZED) {
    log(LogLevel::kError, "letting go of another process's memory failed (CUDA error %d)", static_cast<int>(result));
  }
}

void Ipc::let_go(const Import& import) {
  import.device->link().send(protocol::ImportClosed{import.request});
  if (import.inherited) import.device->memory().driver.disinherit(import.bytes);
}

bool Ipc::close(CUdeviceptr address, CUresult* result) {
  uint64_t request = 0;
  CUcontext context = nullptr;
  {
    Lock lock(mutex_);
    Import* import = find_import(address);
    if (import == nullptr) return false;
    CUcontext current = nullptr;
    *result = cuda::CUDA_ERROR_INVALID_CONTEXT;
    if (real_driver().cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && current == nullptr) return true;
    auto slice = std::find_if(import->slices.begin(), import->slices.end(),
                              [&](const Import::Slice& s) { return import->base + s.offset == address; });
    *result = cuda::CUDA_ERROR_INVALID_VALUE;
    if (slice == import->slices.end()) return true;
    *result = cuda::CUDA_SUCCESS;
    if (--slice->references == 0) import->slices.erase(slice);
    if (--import->references > 0) return true;
    request = import->request;
    context = import->context;
    leaving_.push_back(std::move(*import));
    imports_.erase(imports_.begin() + (import - imports_.data()));
  }
  collect(request, context);
  return true;
}

void Ipc::collect() {
  std::vector<std::pair<uint64_t, CUcontext>> closed;
  {
    Lock lock(mutex_);
    for (const Import& import : leaving_) closed.emplace_back(import.request, import.context);
  }
  for (const auto& [request, context] : closed) collect(request, context);
}

void Ipc::collect(uint64_t request, CUcontext context) {
  const NotCancelled whole;
  // Nothing of this process may be at work on it. A context that failed is no reason to keep it; with one that ends it goes.
  const Contexts::Pinned pinned = process_.contexts.pin(context);
  CUresult ignored = cuda::CUDA_SUCCESS;
  if (pinned == Contexts::Pinned::kYes && synchronize_before_free(process_.captures, context, &ignored)) {
    const GivingBack gives_back(process_);
    std::vector<Import> left;
    if (gives_back) {
      Lock lock(mutex_);
      const auto at = std::find_if(leaving_.begin(), leaving_.end(), [request](const Import& import) { return import.request == request; });
      if (at != leaving_.end()) {  // else another thread was first
        left.push_back(std::move(*at));
        leaving_.erase(at);
      }
    }
    for (const Import& import : left) {
      unmap(import);
      let_go(import);
    }
  } else if (pinned != Contexts::Pinned::kGone) {
    imports_leave.store(true, std::memory_order_seq_cst);
  }
  if (pinned != Contexts::Pinned::kYes) return;
  process_.contexts.unpin(context);
  if (!process_.captures.capturing()) settle_imports(process_);  // a capture ended before it saw that
}

bool Ipc::overlaps(CUdeviceptr address, size_t bytes) {
  Lock lock(mutex_);
  auto meets = [&](const Import& import) {
    return address - import.base < import.bytes || (import.base > address && import.base - address < bytes);
  };
  return std::any_of(imports_.begin(), imports_.end(), meets) || std::any_of(leaving_.begin(), leaving_.end(), meets);
}

bool Ipc::find(CUdeviceptr address, AllocationRange* range, int* ordinal) {
  Lock lock(mutex_);
  Import* import = find_import(address);
  const Import::Slice* slice = import != nullptr ? find_slice(*import, address) : nullptr;
  if (slice == nullptr) return false;
  range->id = kImportedIds | slice->id;
  range->base = import->base + slice->offset;
  range->bytes = slice->bytes;
  range->context = import->context;
  range->sync_memops = slice->sync_memops;
  *ordinal = import->ordinal;
  return true;
}

Ipc::Import::Slice* Ipc::find_slice(Import& import, CUdeviceptr address) {
  for (Import::Slice& slice : import.slices) {
    if (address - import.base - slice.offset < slice.bytes) return &slice;
  }
  return nullptr;
}

void Ipc::set_sync_memops(CUdeviceptr address, bool wanted) {
  Lock lock(mutex_);
  Import* import = find_import(address);
  if (Import::Slice* slice = import != nullptr ? find_slice(*import, address) : nullptr) slice->sync_memops = wanted;
}

void Ipc::context_gone(CUcontext context) {
  std::vector<Import> gone;
  {
    Lock lock(mutex_);
    for (std::vector<Import>* imports : {&imports_, &leaving_}) {
      for (size_t i = imports->size(); i-- > 0;) {
        if ((*imports)[i].context != context) continue;
        gone.push_back(std::move((*imports)[i]));
        imports->erase(imports->begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
  for (const Import& import : gone) {
    unmap(import);
    let_go(import);
  }
}

void Ipc::on_inherited(Device& device, const protocol::ImportInherited& message) {
  Lock lock(mutex_);
  if (pending_.device == &device && pending_.request == message.request) {
    pending_.inherited = true;
    device.memory().driver.inherit(pending_.bytes);
    return;
  }
  for (std::vector<Import>* imports : {&imports_, &leaving_}) {
    for (Import& import : *imports) {
      if (import.device != &device || import.request != message.request || import.inherited) continue;
      import.inherited = true;
      device.memory().driver.inherit(import.bytes);
      return;
    }
  }
}

void Ipc::set_accessors(int ordinal, uint32_t accessors) {
  Lock lock(mutex_);
  for (Import& import : imports_) {
    if (import.ordinal == ordinal) set_access(import, accessors);
  }
}

bool Ipc::open_to(CUdeviceptr address, uint32_t gpus) {
  Lock lock(mutex_);
  Import* import = find_import(address);
  if (import == nullptr) return false;
  gpus = reachable(gpus, import->ordinal) & ~import->accessors;
  if (gpus == 0) return false;
  if (set_access(*import, import->accessors | gpus) != cuda::CUDA_SUCCESS) return false;
  import->opened_to |= gpus;
  return true;
}

uint32_t Ipc::opened_to(CUdeviceptr address) {
  Lock lock(mutex_);
  const Import* import = find_import(address);
  return import != nullptr ? import->opened_to & ~(process_.peers.accessors(import->ordinal) | 1u << import->user) : 0;
}

void Ipc::reset_after_fork() {
  mutex_.reset_after_fork();
  imports_.clear();
  leaving_.clear();
  pending_ = Pending{};
  opening_ = false;
}

}  // namespace nvshare::interposer
