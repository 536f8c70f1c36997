// Memory handed from process to process, and from GPU to GPU.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

#include "e2e/worker/block.h"
#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"
#include "simgpu/control.h"

namespace nvshare::e2e {
namespace {

constexpr unsigned kNonBlocking = 1;
constexpr uint64_t kSeed = 77;

// What the exporter tells the importer, in a file. Every block was filled from kSeed.
struct Handed {
  static constexpr int kBlocks = 3;
  CUipcMemHandle handles[kBlocks];
  uint64_t bytes[kBlocks];
};

void write_file(const std::string& path, const void* data, size_t bytes) {
  const std::string unfinished = path + ".new";
  FILE* file = std::fopen(unfinished.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, bytes, file) != bytes || std::fclose(file) != 0 ||
      std::rename(unfinished.c_str(), path.c_str()) != 0) {
    fail(kExitUnexpected, "cannot write %s", path.c_str());
  }
}

bool read_file(const std::string& path, void* data, size_t bytes) {
  FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  const bool whole = std::fread(data, 1, bytes, file) == bytes;
  std::fclose(file);
  return whole;
}

Handed wait_for_handed(const Options& options, const char* file = "file") {
  Handed handed{};
  while (!read_file(options.text(file, ""), &handed, sizeof handed)) usleep(1000);
  return handed;
}

// `go` outlives the stream, which looks at it once more.
void stand_still_on(CUstream stream, std::atomic<bool>* go) {
  const auto wait = [](void* data) {
    while (!static_cast<std::atomic<bool>*>(data)->load()) usleep(100);
  };
  check(cuda().cuLaunchHostFunc(stream, wait, go), "cuLaunchHostFunc");
}

// Beside a capture on that stream.
void beside_a_capture(CUstream stream, CUresult (*does)(CUdeviceptr), CUdeviceptr memory, const char* what) {
  CUgraph graph = nullptr;
  check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  check(does(memory), what);
  check(cuda().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
}

Workplace workplace() {
  Workplace place{};
  place.kernels = load_kernels();
  check(cuda().cuStreamCreate(&place.stream, kNonBlocking), "cuStreamCreate");
  return place;
}

void expect(CUresult got, CUresult wanted, const char* what) {
  if (got != wanted) fail(kExitUnexpected, "%s gave %d instead of %d", what, got, wanted);
}

// An importer's view of one block: no allocation of its own, but a model.
struct Imported {
  CUdeviceptr address = 0;
  std::vector<uint64_t> expected;

  Imported(const CUipcMemHandle& handle, uint64_t bytes) : expected(bytes / 8) {
    CUdeviceptr again = 0;
    check(cuda().cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
    check(cuda().cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle, again");
    if (again != address) fail(kExitUnexpected, "opened twice, memory is at %llx and %llx", address, again);
    check(cuda().cuIpcCloseMemHandle(again), "cuIpcCloseMemHandle");
    CUdeviceptr base = 0;
    size_t size = 0;
    check(cuda().cuMemGetAddressRange_v2(&base, &size, address + bytes / 2), "cuMemGetAddressRange");
    if (base != address || size != bytes) fail(kExitUnexpected, "the range is %zu bytes at %llx", size, base);
    unsigned kind = 0;
    int ordinal = -1;
    check(cuda().cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), "the memory type");
    check(cuda().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address), "the device");
    if (kind != CU_MEMORYTYPE_DEVICE || ordinal != 0) fail(kExitUnexpected, "memory type %u on device %d", kind, ordinal);
    expect(cuda().cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE, "freeing imported memory");
    model_fill(expected.data(), expected.size(), kSeed);
    verify();
  }
  void mix(const Workplace& place, uint64_t round) {
    check(launch(place.kernels.mix, place.stream, address, uint64_t{expected.size()}, round), "sim_mix");
    model_mix(expected.data(), expected.size(), round);
  }
  // A fill is the context's that opened it, and so is the exporter; copies are anybody's (measured).
  void look_from_another_context(const CUipcMemHandle& another) const {
    CUcontext other = nullptr;
    check(cuda().cuCtxCreate_v2(&other, 0, 0), "cuCtxCreate");
    expect(cuda().cuMemsetD8Async(address, 1, 64, nullptr), CUDA_ERROR_INVALID_VALUE, "filling imported memory from another context");
    expect(cuda().cuStreamWriteValue32_v2(nullptr, address, 1, 0), CUDA_ERROR_INVALID_VALUE,
           "a value on imported memory from another context");
    uint64_t word = 0;
    check(cuda().cuMemcpyDtoH_v2(&word, address, sizeof word), "copying imported memory from another context");
    CUdeviceptr opened = 0;
    expect(cuda().cuMemGetAddressRange_v2(nullptr, nullptr, address), CUDA_ERROR_NOT_FOUND,
           "the range of imported memory in another context");
    expect(cuda().cuPointerGetAttribute(&opened, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address), CUDA_ERROR_INVALID_VALUE,
           "the address of imported memory in another context");
    expect(cuda().cuIpcOpenMemHandle_v2(&opened, another, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE,
           "opening memory in another context");
    check(cuda().cuCtxDestroy_v2(other), "cuCtxDestroy");  // the one before is current again
  }
  // A thread without a context changes a graph's fill of plain memory; so it does of this.
  void change_a_fill_without_a_context() const {
    CUcontext own = nullptr;
    check(cuda().cuDevicePrimaryCtxRetain(&own, 0), "cuDevicePrimaryCtxRetain");
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUDA_MEMSET_NODE_PARAMS fill{};
    fill.dst = address;
    fill.elementSize = 1;
    fill.width = 512;
    fill.height = 1;
    check(cuda().cuGraphCreate(&graph, 0), "cuGraphCreate");
    check(cuda().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, own), "cuGraphAddMemsetNode");
    check(cuda().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    check(cuda().cuGraphMemsetNodeSetParams(node, &fill), "cuGraphMemsetNodeSetParams of imported memory without a context");
    check(cuda().cuCtxSetCurrent(own), "cuCtxSetCurrent");
    check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  }
  // Closed, also while another allocation of the same piece is open.
  void expect_unknown() const {
    unsigned kind = 0;
    expect(cuda().cuMemGetAddressRange_v2(nullptr, nullptr, address), CUDA_ERROR_NOT_FOUND, "the range of closed memory");
    expect(cuda().cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE,
           "the memory type of closed memory");
  }
  // On two stand-in GPUs: the importer's other GPU copies it like plain memory, and does not fill it.
  void copy_from_another_gpu() {
    CUcontext own = nullptr;
    CUcontext other = nullptr;
    check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    check(cuda().cuDevicePrimaryCtxRetain(&own, 0), "cuDevicePrimaryCtxRetain");
    check(cuda().cuDevicePrimaryCtxRetain(&other, 1), "cuDevicePrimaryCtxRetain");
    check(cuda().cuCtxSetCurrent(other), "cuCtxSetCurrent");
    CUdeviceptr plain = 0;
    const size_t bytes = expected.size() * 8;
    check(cuda().cuMemAlloc_v2(&plain, bytes), "cuMemAlloc");
    check(cuda().cuMemcpyDtoD_v2(plain, address, bytes), "copying imported memory to another GPU");
    std::vector<uint64_t> got(expected.size());
    check(cuda().cuMemcpyDtoH_v2(got.data(), plain, bytes), "cuMemcpyDtoH");
    if (got != expected) fail(kExitWrongBytes, "%zu bytes of imported memory did not arrive", bytes);
    model_mix(expected.data(), expected.size(), 0);
    check(cuda().cuMemcpyHtoD_v2(address, expected.data(), bytes), "copying to imported memory by another GPU");
    expect(cuda().cuMemsetD8Async(address, 1, 64, nullptr), CUDA_ERROR_INVALID_VALUE, "filling imported memory by another GPU");
    expect(cuda().cuStreamWriteValue32_v2(nullptr, address, 1, 0), CUDA_ERROR_INVALID_VALUE,
           "a value written to imported memory by another GPU");
    check(cuda().cuMemFree_v2(plain), "cuMemFree");
    check(cuda().cuCtxSetCurrent(own), "cuCtxSetCurrent");
  }
  void verify() const {
    std::vector<uint64_t> got(expected.size());
    check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    check(cuda().cuMemcpyDtoH_v2(got.data(), address, got.size() * 8), "cuMemcpyDtoH");
    if (got != expected) fail(kExitWrongBytes, "%zu bytes of imported memory are not what they should be", got.size() * 8);
  }
};

}  // namespace

// Hands over a large block and two small ones, which share a piece of 2 MiB, works on others until the importer has written to them, then
// looks at what it wrote.
void run_ipc_export(const Options& options) {
  retain_primary();
  Workplace place = workplace();
  CUdeviceptr scratch = 0;
  check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
  const std::string file = options.text("file", "");
  Block large(place, options.number("hand", 24u << 20), Allocation::kPlain);
  Block small(place, 4096, Allocation::kPlain);
  Block beside_small(place, 4096, Allocation::kPlain);
  Block ballast(place, options.number("hold", 40u << 20), Allocation::kPlain);
  ballast.fill(1);
  Block* handed_over[Handed::kBlocks] = {&large, &small, &beside_small};
  Handed handed{};
  for (int i = 0; i < Handed::kBlocks; ++i) {
    handed_over[i]->fill(kSeed);
    // Any address inside stands for the allocation.
    check(cuda().cuIpcGetMemHandle(&handed.handles[i], handed_over[i]->address() + 1024), "cuIpcGetMemHandle");
    handed.bytes[i] = handed_over[i]->bytes();
    CUdeviceptr own = 0;
    expect(cuda().cuIpcOpenMemHandle_v2(&own, handed.handles[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT,
           "opening a handle of one's own");
  }
  for (Block* block : handed_over) block->verify_checksum(scratch);
  write_file(file, &handed, sizeof handed);
  say("handed over");
  uint64_t rounds = 0;
  for (uint64_t round = 0; !read_file(file + ".done", &rounds, sizeof rounds); ++round) {
    if (options.told_to_stop()) break;
    ballast.mix(round);
    if (round % 16 == 0) ballast.verify_checksum(scratch);
  }
  for (Block* block : handed_over) {
    for (uint64_t round = 0; round < rounds; ++round) block->model_mix(round);
    block->verify_bytes();
  }
  ballast.verify_bytes();
  say("looked at");
  for (Block* block : handed_over) block->free();
  if (!options.text("go", "").empty()) stand_still(options);
  ballast.verify_bytes();
}

// Opens them, works on them and on memory of its own for --steps rounds. With --go it then stands still once with the memory open, and
// once with it closed. With --in-capture it closes the memory while its own stream captures. With --gpus 2 it is copied by GPU 1, and no
// more.
void run_ipc_import(const Options& options) {
  retain_primary();
  Workplace place = workplace();
  CUdeviceptr scratch = 0;
  check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
  Block ballast(place, options.number("hold", 40u << 20), Allocation::kPlain);
  ballast.fill(2);
  const Handed handed = wait_for_handed(options);
  CUdeviceptr none = 0;
  expect(cuda().cuIpcOpenMemHandle_v2(&none, handed.handles[0], 0), CUDA_ERROR_INVALID_VALUE, "opening without the flag");
  std::vector<std::unique_ptr<Imported>> opened;
  for (int i = 0; i < Handed::kBlocks; ++i) opened.push_back(std::make_unique<Imported>(handed.handles[i], handed.bytes[i]));
  unsigned long long ids[Handed::kBlocks] = {};
  for (int i = 0; i < Handed::kBlocks; ++i) {
    check(cuda().cuPointerGetAttribute(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, opened[static_cast<size_t>(i)]->address),
          "the buffer's id");
    if (i > 0 && ids[i] == ids[0]) fail(kExitUnexpected, "two imported blocks have the id %llx", ids[i]);
  }
  say("opened");
  const uint64_t steps = options.number("steps", 100);
  if (options.number("gpus", 1) > 1) {
    for (auto& memory : opened) memory->copy_from_another_gpu();
    for (auto& memory : opened) memory->verify();
    say("copied by another GPU");
    const uint64_t once = 1;
    write_file(options.text("file", "") + ".done", &once, sizeof once);
    return;
  }
  for (uint64_t round = 0; round < steps; ++round) {
    for (auto& memory : opened) memory->mix(place, round);
    ballast.mix(round);
    if (round % 16 == 0) {
      ballast.verify_checksum(scratch);
      for (auto& memory : opened) memory->verify();
    }
  }
  opened.front()->look_from_another_context(handed.handles[1]);
  opened.front()->change_a_fill_without_a_context();
  for (auto& memory : opened) memory->verify();
  write_file(options.text("file", "") + ".done", &steps, sizeof steps);
  if (!options.text("go", "").empty()) stand_still(options);
  for (auto& memory : opened) memory->verify();
  const bool in_capture = options.number("in-capture", 0) != 0;
  if (in_capture) check(cuda().cuStreamBeginCapture_v2(place.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  for (auto& memory : opened) {
    check(cuda().cuIpcCloseMemHandle(memory->address), "cuIpcCloseMemHandle");
    if (cuda().cuIpcCloseMemHandle(memory->address) == CUDA_SUCCESS) fail(kExitUnexpected, "closed twice");
    memory->expect_unknown();
  }
  if (in_capture) {
    CUgraph graph = nullptr;
    check(cuda().cuStreamEndCapture(place.stream, &graph), "cuStreamEndCapture");
    check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  }
  say("closed");
  if (!options.text("go", "").empty()) {
    while (!options.told_to_stop()) usleep(1000);
  }
  ballast.verify_bytes();
}

// Closes a block in a capture while work on it waits, on another stream, for this thread to go on; opens the others meanwhile.
void run_ipc_close_while_the_gpu_waits(const Options& options) {
  retain_primary();
  const Workplace place = workplace();
  const Workplace still = workplace();
  const Handed handed = wait_for_handed(options);
  Imported closed(handed.handles[0], handed.bytes[0]);
  static std::atomic<bool> go{false};
  CUgraph graph = nullptr;
  check(cuda().cuStreamBeginCapture_v2(place.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  stand_still_on(still.stream, &go);
  closed.mix(still, 0);
  check(cuda().cuIpcCloseMemHandle(closed.address), "cuIpcCloseMemHandle");
  check(cuda().cuStreamEndCapture(place.stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  closed.expect_unknown();
  CUdeviceptr opened = 0;
  check(cuda().cuIpcOpenMemHandle_v2(&opened, handed.handles[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
  say("closed, and another opened");
  go.store(true);
  check(cuda().cuStreamSynchronize(still.stream), "cuStreamSynchronize");
  for (int i = 1; i < Handed::kBlocks; ++i) {
    Imported memory(handed.handles[i], handed.bytes[i]);
    memory.mix(place, 0);
    memory.verify();
    check(cuda().cuIpcCloseMemHandle(memory.address), "cuIpcCloseMemHandle");
  }
  check(cuda().cuIpcCloseMemHandle(opened), "cuIpcCloseMemHandle");
  const uint64_t rounds = 1;
  write_file(options.text("file", "") + ".done", &rounds, sizeof rounds);
  while (!options.told_to_stop()) usleep(1000);
}

// Closes a block of one exporter in a capture while its context's work waits for this thread, then one of another (--other) in another
// context, which has no work.
void run_ipc_close_elsewhere(const Options& options) {
  CUcontext other = nullptr;
  CUcontext own = retain_primary();
  const Workplace place = workplace();
  const Workplace still = workplace();
  const Handed handed[2] = {wait_for_handed(options), wait_for_handed(options, "other")};
  static std::atomic<bool> go{false};
  Imported first(handed[0].handles[0], handed[0].bytes[0]);
  check(cuda().cuCtxCreate_v2(&other, 0, 0), "cuCtxCreate");
  Imported second(handed[1].handles[0], handed[1].bytes[0]);
  check(cuda().cuCtxSetCurrent(own), "cuCtxSetCurrent");
  stand_still_on(still.stream, &go);
  beside_a_capture(place.stream, cuda().cuIpcCloseMemHandle, first.address, "cuIpcCloseMemHandle");
  check(cuda().cuCtxSetCurrent(other), "cuCtxSetCurrent");
  check(cuda().cuIpcCloseMemHandle(second.address), "cuIpcCloseMemHandle");
  second.expect_unknown();
  say("closed in another context");
  go.store(true);
  const uint64_t rounds = 0;
  for (const char* file : {"file", "other"}) write_file(options.text(file, "") + ".done", &rounds, sizeof rounds);
}

// Closes a block in a context that no function of the driver's interface has made.
void run_ipc_close_unseen(const Options& options) {
  retain_primary();
  const Handed handed = wait_for_handed(options);
  if (simgpu_control("make_context", nullptr) != CUDA_SUCCESS) fail(kExitUnexpected, "no context");
  const Imported block(handed.handles[0], handed.bytes[0]);
  check(cuda().cuIpcCloseMemHandle(block.address), "cuIpcCloseMemHandle");
  const uint64_t rounds = 0;
  write_file(options.text("file", "") + ".done", &rounds, sizeof rounds);
  while (!options.told_to_stop()) usleep(1000);
}

// Hands a block over that it has freed beside a capture; natively a handle of such memory is worth nothing.
void run_ipc_export_freed(const Options& options) {
  retain_primary();
  const Workplace place = workplace();
  Handed handed{};
  CUdeviceptr memory = 0;
  CUipcMemHandle late;
  check(cuda().cuMemAlloc_v2(&memory, 4u << 20), "cuMemAlloc");
  check(cuda().cuIpcGetMemHandle(&handed.handles[0], memory), "cuIpcGetMemHandle");
  beside_a_capture(place.stream, cuda().cuMemFree_v2, memory, "cuMemFree");
  expect(cuda().cuIpcGetMemHandle(&late, memory), CUDA_ERROR_INVALID_VALUE, "handing over what is freed");
  write_file(options.text("file", ""), &handed, sizeof handed);
  uint64_t rounds = 0;
  while (!read_file(options.text("file", "") + ".done", &rounds, sizeof rounds)) usleep(1000);
}

// Opens it.
void run_ipc_import_freed(const Options& options) {
  retain_primary();
  CUdeviceptr address = 0;
  const Handed handed = wait_for_handed(options);
  expect(cuda().cuIpcOpenMemHandle_v2(&address, handed.handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE,
         "opening what is freed");
  const uint64_t rounds = 0;
  write_file(options.text("file", "") + ".done", &rounds, sizeof rounds);
}

// Of another tenant: the handle is worth nothing to it.
void run_ipc_refused(const Options& options) {
  retain_primary();
  CUdeviceptr own = 0;
  check(cuda().cuMemAlloc_v2(&own, 4096), "cuMemAlloc");
  const Handed handed = wait_for_handed(options);
  CUdeviceptr address = 0;
  expect(cuda().cuIpcOpenMemHandle_v2(&address, handed.handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_NOT_PERMITTED,
         "opening a stranger's memory");
  CUipcMemHandle guessed = handed.handles[0];
  guessed.reserved[63] = static_cast<char>(guessed.reserved[63] ^ 1);
  if (cuda().cuIpcOpenMemHandle_v2(&address, guessed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS) {
    fail(kExitUnexpected, "a guessed handle was opened");
  }
}

// ---- Two GPUs ----

// GPU 1's kernels read GPU 0's memory and write to it, allocated before and after access was enabled; its owner works on it in between.
void run_peer(const Options& options) {
  CUcontext contexts[2] = {};
  Workplace places[2] = {};
  CUdeviceptr scratch[2] = {};
  for (int i = 0; i < 2; ++i) {
    check(cuda().cuDevicePrimaryCtxRetain(&contexts[i], i), "cuDevicePrimaryCtxRetain");
    check(cuda().cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
    places[i] = workplace();
    check(cuda().cuMemAlloc_v2(&scratch[i], 8), "cuMemAlloc");
  }
  const size_t bytes = options.number("hold", 60u << 20) / 2;
  auto on = [&](int i) { check(cuda().cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent"); };
  on(0);
  auto before = std::make_unique<Block>(places[0], bytes, Allocation::kPlain);
  before->fill(1);
  on(1);
  Block mine(places[1], bytes, Allocation::kPlain);
  mine.fill(2);
  check(cuda().cuCtxEnablePeerAccess(contexts[0], 0), "cuCtxEnablePeerAccess");
  expect(cuda().cuCtxEnablePeerAccess(contexts[0], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "enabling access twice");
  on(0);
  check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  auto after = std::make_unique<Block>(places[0], bytes, Allocation::kPlain);
  after->fill(3);
  check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  say("peers");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    on(1);
    Block& theirs = round % 2 == 0 ? *before : *after;
    // Not waited for by GPU 0: memory must not leave it meanwhile.
    mine.add(theirs);
    uint64_t words = theirs.bytes() / 8;
    check(launch(places[1].kernels.mix, places[1].stream, theirs.address(), words, round), "sim_mix");
    theirs.model_mix(round);
    if (round % 8 == 0) mine.verify_checksum(scratch[1]);
    if (round % 4 != 0) continue;
    check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    on(0);
    theirs.mix(round + 1);
    theirs.verify_checksum(scratch[0]);
    if (round % 32 == 0) {
      after->verify_bytes();
      after->free();
      after = std::make_unique<Block>(places[0], bytes, Allocation::kPlain);
      after->fill(round);
    }
    check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  on(1);
  mine.verify_bytes();
  on(0);
  before->verify_bytes();
  after->verify_bytes();
  on(1);
  check(cuda().cuCtxDisablePeerAccess(contexts[0]), "cuCtxDisablePeerAccess");
}

}  // namespace nvshare::e2e
