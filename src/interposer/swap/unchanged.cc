#include "interposer/swap/unchanged.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/swap/copies/chunk_hash_ptx.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/variable.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

constexpr char kKernel[] = "nvshare_chunk_hash";
constexpr size_t kLaunchUnitsMax = 32768;        // in one launch: 16 GiB
constexpr size_t kStageBytes = size_t{2} << 20;  // of a chunk that is compared, at a time
constexpr uint64_t kComparedShare = 1000;        // of what is said to be unchanged, one in so many is compared
constexpr int kMemoryShortMost = 16;             // times without memory for the kernel, until it is given up
static_assert(kStageBytes >= kHashUnitBytes);

}  // namespace

struct Unchanged::Shared {
  char stage[2][kStageBytes];
  uint64_t units[kLaunchUnitsMax];
  ChunkHash hashes[kLaunchUnitsMax];
};

void Unchanged::configure() {
  random_ = static_cast<uint64_t>(now_ns()) ^ static_cast<uint64_t>(getpid()) << 32;
  static constexpr ChoiceVariable<Wish, 2> kVariable = {
      .name = "NVSHARE_SKIP_UNCHANGED",
      .choices = {{"on", Wish::kOn}, {"off", Wish::kOff}},
      .unset = Wish::kNone,
      .wrong = Wish::kNone,
      .then = "Going on with what the node says",
      .meaning = "whether memory that has not changed leaves the GPU without a copy; goes before the scheduler's setting"};
  wish_ = value_of(kVariable);
}

void Unchanged::node_says(bool on) { wanted_.store(wish_ == Wish::kNone ? on : wish_ == Wish::kOn, std::memory_order_relaxed); }

void Unchanged::end(const char* why, int error) {
  ended_.store(true, std::memory_order_relaxed);
  if (device_.process().ending()) return;
  log(LogLevel::kWarning, "memory that did not change is copied as well: %s (CUDA error %d)", why, error);
}

// ---- the kernel ----

void Unchanged::drop() {
  const RealDriver& driver = real_driver();
  if (module_ != nullptr) driver.cuModuleUnload(module_);
  if (shared_ != nullptr) driver.cuMemFreeHost(shared_);
  module_ = nullptr;
  kernel_ = nullptr;
  shared_ = nullptr;
  claims_ = 0;
}

CUresult Unchanged::hash_units(size_t count, cuda::CUstream stream) {
  const RealDriver& driver = real_driver();
  cuda::CUdeviceptr units = reinterpret_cast<cuda::CUdeviceptr>(shared_->units);
  cuda::CUdeviceptr hashes = reinterpret_cast<cuda::CUdeviceptr>(shared_->hashes);
  uint64_t number = count;
  void* parameters[] = {&units, &hashes, &number};
  // A kernel that did not run must not leave an earlier answer.
  memset(static_cast<void*>(shared_->hashes), 0, count * sizeof(ChunkHash));
  CUresult result = driver.cuLaunchKernel(kernel_, static_cast<unsigned>(count), 1, 1, kHashThreads, 1, 1, 0, stream, parameters, nullptr);
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream);
  return result;
}

// By what it says of this process's own memory, which it reaches as it does the GPU's.
bool Unchanged::passes_self_test(cuda::CUstream stream) {
  uint64_t word = random_;
  for (size_t i = 0; i < kHashUnitBytes; i += sizeof word) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    memcpy(shared_->stage[0] + i, &word, sizeof word);
  }
  shared_->units[0] = reinterpret_cast<uint64_t>(shared_->stage[0]);
  const CUresult result = hash_units(1, stream);
  if (result == cuda::CUDA_SUCCESS && shared_->hashes[0] == hash_unit(shared_->stage[0])) return true;
  end("the GPU's hash is not what it should be", static_cast<int>(result));
  return false;
}

bool Unchanged::load(cuda::CUstream stream) {
  const RealDriver& driver = real_driver();
  void* shared = nullptr;
  CUresult result = driver.cuMemHostAlloc(&shared, sizeof(Shared), 0);
  if (result == cuda::CUDA_SUCCESS) {
    shared_ = static_cast<Shared*>(shared);
    result = driver.cuModuleLoadData(&module_, kChunkHashPtx);
  }
  if (result == cuda::CUDA_SUCCESS) result = driver.cuModuleGetFunction(&kernel_, module_, kKernel);
  if (result == cuda::CUDA_SUCCESS) {
    if (passes_self_test(stream)) return true;
  } else if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && ++memory_short_ < kMemoryShortMost) {
    log(LogLevel::kDebug, "no memory for the kernel that finds what changed; it is tried again");
  } else {
    end("the kernel that finds what changed cannot be loaded", static_cast<int>(result));
  }
  drop();
  return false;
}

bool Unchanged::prepare(cuda::CUstream stream) { return kernel_ != nullptr || load(stream); }

// ---- looking ----

bool Unchanged::hash_all(const std::vector<Piece>& pieces, std::vector<Finding>* findings, cuda::CUstream stream) {
  DeviceMemory& memory = device_.memory();
  size_t next = 0;
  while (next < pieces.size()) {
    size_t units = 0;
    const size_t first = next;
    for (; next < pieces.size(); ++next) {
      const Piece& piece = pieces[next];
      const size_t count = piece.bytes / kHashUnitBytes;
      if (units + count > kLaunchUnitsMax) break;
      if (!memory.copies.hash_wanted(piece) || device_.process().vmm.open_window(memory.blocks, *piece.block) != cuda::CUDA_SUCCESS)
        continue;
      for (size_t i = 0; i < count; ++i) shared_->units[units++] = piece.address() + i * kHashUnitBytes;
      (*findings)[next].hashed = true;
    }
    if (units == 0) continue;
    const CUresult result = hash_units(units, stream);
    if (result != cuda::CUDA_SUCCESS) {
      end("hashing it failed", static_cast<int>(result));
      return false;
    }
    size_t at = 0;
    for (size_t i = first; i < next; ++i) {
      if (!(*findings)[i].hashed) continue;
      const size_t count = pieces[i].bytes / kHashUnitBytes;
      (*findings)[i].hash = join_units(shared_->hashes + at, count);
      at += count;
    }
  }
  return true;
}

bool Unchanged::is_picked() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return (random_ >> 33) % std::min(++claims_, kComparedShare) == 0;
}

bool Unchanged::compare(const Piece& piece, cuda::CUstream stream, CUresult* result) {
  const RealDriver& driver = real_driver();
  const char* host = piece.chunk().host.data;
  const cuda::CUdeviceptr gpu = piece.address();
  auto part = [&](size_t offset) { return std::min(kStageBytes, piece.bytes - offset); };
  auto fetch = [&](size_t offset, int stage) {
    if (offset >= piece.bytes) return cuda::CUDA_SUCCESS;
    return driver.cuMemcpyDtoHAsync_v2(shared_->stage[stage], gpu + offset, part(offset), stream);
  };
  *result = fetch(0, 0);
  int stage = 0;
  for (size_t offset = 0; offset < piece.bytes; offset += kStageBytes, stage ^= 1) {
    if (*result == cuda::CUDA_SUCCESS) *result = driver.cuStreamSynchronize(stream);
    if (*result == cuda::CUDA_SUCCESS) *result = fetch(offset + kStageBytes, stage ^ 1);  // beside the comparison
    if (*result != cuda::CUDA_SUCCESS) return false;
    if (memcmp(shared_->stage[stage], host + offset, part(offset)) != 0) {
      *result = driver.cuStreamSynchronize(stream);
      return false;
    }
  }
  return true;
}

// Before anything has left.
void Unchanged::verify(const std::vector<Piece>& pieces, std::vector<Finding>* findings, cuda::CUstream stream) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!(*findings)[i].same || !is_picked()) continue;
    CUresult result = cuda::CUDA_SUCCESS;
    if (compare(pieces[i], stream, &result)) continue;
    if (result == cuda::CUDA_SUCCESS) {
      mistake_.store(true, std::memory_order_relaxed);
      log(LogLevel::kError, "memory that had the same hash as before had changed: nothing was lost, and from now on all memory is copied");
    }
    end("what was found unchanged could not be confirmed", static_cast<int>(result));
    for (size_t each = 0; each < pieces.size(); ++each) {
      if ((*findings)[each].same) device_.memory().copies.disown(pieces[each]);
    }
    findings->clear();
    return;
  }
}

std::vector<Unchanged::Finding> Unchanged::look(const std::vector<Piece>& pieces, cuda::CUstream stream) {
  std::vector<Finding> findings;
  if (!on() || pieces.empty() || !prepare(stream)) return findings;
  findings.resize(pieces.size());
  if (!hash_all(pieces, &findings, stream)) {
    findings.clear();
    return findings;
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    findings[i].same = findings[i].hashed && device_.memory().copies.adopt_kept(pieces[i], findings[i].hash);
  }
  verify(pieces, &findings, stream);
  return findings;
}

}  // namespace nvshare::interposer
