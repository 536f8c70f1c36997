// Green contexts: parts of a primary context. What becomes of their memory when they end is not documented.
#include "answers/answers.h"
#include "answers/structs.h"
#include "driver.h"

namespace answers {
namespace {

using Green = struct GreenTag*;

constexpr size_t kBytes = 4 * kMiB;
constexpr int kContextAttribute = 1;

struct Part {
  Green green = nullptr;
  Context context = nullptr;
};

// All multiprocessors: a driver takes no description for that.
Part make_part() {
  Part part;
  must("cuGreenCtxCreate", &part.green, static_cast<void*>(nullptr), 0, 1u);
  must("cuCtxFromGreenCtx", &part.context, part.green);
  return part;
}

Address plain(size_t bytes, uint32_t seed) {
  Address address = 0;
  must("cuMemAlloc_v2", &address, bytes);
  write_pattern(address, bytes, seed);
  return address;
}

void use_streams(Green green, Address memory) {
  Stream stream = nullptr;
  say_result("stream", call("cuGreenCtxStreamCreate", &stream, green, kNonBlocking, 0));
  say_result("fill", call("cuMemsetD32Async", memory, 7u, kBytes / 8, stream));
  Address ordered = 0;
  say_result("allocate in order", call("cuMemAllocAsync", &ordered, kBytes, stream));
  say_result("fill that", call("cuMemsetD32Async", ordered, 9u, kBytes / 4, stream));
  unsigned word = 0;
  say_result("copy from it", call("cuMemcpyDtoHAsync_v2", static_cast<void*>(&word), ordered, sizeof word, stream));
  say_result("free in order", call("cuMemFreeAsync", ordered, stream));
  say_result("synchronise", call("cuStreamSynchronize", stream));
  say("the word: %u", word);
  say_result("destroy the stream", call("cuStreamDestroy_v2", stream));
}

// Everything that goes by a stream, with a green context current.
void on_stream(const char* name, Stream stream, Address memory) {
  const auto tell = [name](const char* what, Result result) { say("%s, %s: %d", name, what, result); };
  gputest::CUfunction noop = gputest::kernel("sim_noop");
  tell("launch",
       call("cuLaunchKernel", noop, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, static_cast<void**>(nullptr), static_cast<void**>(nullptr)));
  tell("fill", call("cuMemsetD32Async", memory, 7u, kBytes / 8, stream));
  tell("copy", call("cuMemcpyDtoDAsync_v2", memory, memory + kBytes / 2, kBytes / 4, stream));
  Address ordered = 0;
  tell("allocate", call("cuMemAllocAsync", &ordered, kBytes, stream));
  if (ordered != 0) tell("free", call("cuMemFreeAsync", ordered, stream));
  void* pool = nullptr;
  must("cuDeviceGetDefaultMemPool", &pool, 0);
  ordered = 0;
  tell("allocate from a pool", call("cuMemAllocFromPoolAsync", &ordered, kBytes, pool, stream));
  if (ordered != 0) tell("free", call("cuMemFreeAsync", ordered, stream));
  ordered = 0;
  tell("allocate far too much", call("cuMemAllocAsync", &ordered, size_t{1} << 45, stream));
  tell("allocate nothing", call("cuMemAllocAsync", &ordered, size_t{0}, stream));
  Event event = nullptr;
  must("cuEventCreate", &event, 2u);
  tell("record an event", call("cuEventRecord", event, stream));
  tell("wait for it", call("cuStreamWaitEvent", stream, event, 0u));
  tell("write a value", call("cuStreamWriteValue32_v2", stream, memory, 5u, 0u));
  tell("query", call("cuStreamQuery", stream) == 600 ? 0 : call("cuStreamQuery", stream));
  tell("synchronise", call("cuStreamSynchronize", stream));
  must("cuEventDestroy_v2", event);
}

struct CopyAttributes {
  int source_access;  // 1: in stream order
  Location source_hint, target_hint;
  unsigned flags;
};

// One side of a copy of a batch: linear memory.
struct Operand {
  unsigned type = 1;
  Address address = 0;
  size_t row = 0, layer = 0;
  Location hint{};
};
static_assert(sizeof(Operand) == 40);
struct Copy3DOfBatch {
  Operand from, to;
  size_t extent[3];
  unsigned source_access;
  unsigned flags;
};

void batches(const char* name, Stream stream, Address from, Address to) {
  const auto tell = [name](const char* what, Result result) { say("%s, %s: %d", name, what, result); };
  write_pattern(from, kBytes, 11);
  write_pattern(to, kBytes, 12);
  CopyAttributes attributes{1, {}, {}, 0};
  Address targets[] = {to, to + kMiB}, sources[] = {from, from + kMiB};
  size_t sizes[] = {kMiB, kMiB / 2};
  size_t index = 0, failed = 77;
  const auto batch = [&](size_t count, size_t kinds) {
    failed = 77;
    const Result result = call("cuMemcpyBatchAsync", targets, sources, sizes, count, &attributes, &index, kinds, &failed, stream);
    say("%s, index of the failure: %zu", name, failed);
    return result;
  };
  tell("batch", batch(2, 1));
  tell("synchronise", call("cuStreamSynchronize", stream));
  say("%s, copied: %d", name, has_pattern(to, kMiB, 11));
  tell("batch, newer", call("cuMemcpyBatchAsync_v2", targets, sources, sizes, size_t{2}, &attributes, &index, size_t{1}, stream));
  tell("batch of none", batch(0, 1));
  tell("batch without attributes", batch(2, 0));
  attributes.source_access = 9;
  tell("batch with an unknown order", batch(2, 1));
  attributes.source_access = 1;
  attributes.flags = 64;
  tell("batch with an unknown flag", batch(2, 1));
  attributes.flags = 0;
  index = 1;
  tell("batch that begins with the second", batch(2, 1));
  index = 0;
  sizes[1] = 0;
  tell("batch with an empty one", batch(2, 1));
  sizes[1] = kMiB;
  Copy3DOfBatch deep{};
  deep.from.address = from;
  deep.to.address = to;
  deep.extent[0] = 4096;
  deep.extent[1] = 16;
  deep.extent[2] = 4;
  deep.source_access = 1;
  must("cuStreamSynchronize", stream);  // the pattern goes by another stream
  write_pattern(to, kBytes, 12);
  tell("3D batch", call("cuMemcpy3DBatchAsync", size_t{1}, &deep, &failed, 0ull, stream));
  tell("synchronise", call("cuStreamSynchronize", stream));
  say("%s, copied: %d", name, has_pattern(to, size_t{4096} * 16 * 4, 11));
  deep.from.row = 8192;
  deep.to.layer = 32;
  tell("3D batch, newer, with pitches", call("cuMemcpy3DBatchAsync_v2", size_t{1}, &deep, 0ull, stream));
  deep.from.row = 100;
  tell("3D batch with a row too short", call("cuMemcpy3DBatchAsync_v2", size_t{1}, &deep, 0ull, stream));
  deep.from.row = 0;
  tell("3D batch with a flag", call("cuMemcpy3DBatchAsync_v2", size_t{1}, &deep, 8ull, stream));
  deep.extent[2] = 0;
  tell("3D batch of nothing", call("cuMemcpy3DBatchAsync_v2", size_t{1}, &deep, 0ull, stream));
  tell("3D batch of none", call("cuMemcpy3DBatchAsync_v2", size_t{0}, &deep, 0ull, stream));
  tell("synchronise", call("cuStreamSynchronize", stream));
}

}  // namespace

// A thread's own default stream is none of a green context's (measured); the legacy one is.
void green_streams() {
  use(0);
  const Part part = make_part();
  const Address memory = plain(kBytes, 1);
  settle();
  say_result("make it current", call("cuCtxSetCurrent", part.context));
  Stream made = nullptr;
  must("cuStreamCreate", &made, kNonBlocking);
  on_stream("null", nullptr, memory);
  on_stream("legacy", reinterpret_cast<Stream>(uintptr_t{1}), memory);
  on_stream("of the thread", reinterpret_cast<Stream>(uintptr_t{2}), memory);
  on_stream("made", made, memory);
  Address ordered = 0;
  must("cuMemAllocAsync", &ordered, kBytes, made);
  say_result("free it on the thread's", call("cuMemFreeAsync", ordered, reinterpret_cast<Stream>(uintptr_t{2})));
  say_result("allocate, null is the thread's", call("cuMemAllocAsync_ptsz", &ordered, kBytes, Stream{nullptr}));
  must("cuStreamSynchronize", made);
}

void green_batches() {
  const Context primary = use(0);
  const Part part = make_part();
  const Address from = plain(kBytes, 1), to = plain(kBytes, 2);
  settle();
  Stream of_primary = nullptr, made = nullptr, of_green = nullptr;
  must("cuStreamCreate", &of_primary, kNonBlocking);
  must("cuGreenCtxStreamCreate", &of_green, part.green, kNonBlocking, 0);
  batches("primary", of_primary, from, to);
  say_result("make it current", call("cuCtxSetCurrent", part.context));
  must("cuStreamCreate", &made, kNonBlocking);
  batches("made", made, from, to);
  batches("of the green one", of_green, from, to);
  say_result("primary again", call("cuCtxSetCurrent", primary));
  batches("made, from the primary", made, from, to);
}

// Without a current context.
void green_batches_alone() {
  use(0);
  const Part part = make_part();
  const Address from = plain(kBytes, 1), to = plain(kBytes, 2);
  Stream of_green = nullptr;
  must("cuGreenCtxStreamCreate", &of_green, part.green, kNonBlocking, 0);
  settle();
  say_result("none is current", call("cuCtxSetCurrent", Context{nullptr}));
  CopyAttributes attributes{1, {}, {}, 0};
  Address target = to, source = from;
  size_t size = kMiB, index = 0, failed = 77;
  say_result("batch", call("cuMemcpyBatchAsync", &target, &source, &size, size_t{1}, &attributes, &index, size_t{1}, &failed, of_green));
  say("index of the failure: %zu", failed);
  say_result("batch, newer", call("cuMemcpyBatchAsync_v2", &target, &source, &size, size_t{1}, &attributes, &index, size_t{1}, of_green));
  Copy3DOfBatch deep{};
  deep.from.address = from;
  deep.to.address = to;
  deep.extent[0] = 4096;
  deep.extent[1] = deep.extent[2] = 4;
  deep.source_access = 1;
  say_result("3D batch", call("cuMemcpy3DBatchAsync_v2", size_t{1}, &deep, 0ull, of_green));
}

void green_contexts() {
  const Context primary = use(0);
  const Part part = make_part();
  const Address before = plain(kBytes, 1);
  say_result("make it current", call("cuCtxSetCurrent", part.context));
  const Address memory = plain(kBytes, 2);
  Context of_memory = nullptr;
  say_result("whose memory", call("cuPointerGetAttribute", static_cast<void*>(&of_memory), kContextAttribute, memory));
  say("it is the primary's: %d, the green one's: %d", of_memory == primary, of_memory == part.context);
  settle();
  say("bytes are there: %d %d", has_pattern(before, kBytes, 1), has_pattern(memory, kBytes, 2));
  use_streams(part.green, memory);
  say_result("synchronise all", call("cuCtxSynchronize"));
  say_result("free", call("cuMemFree_v2", memory));
  say_result("primary again", call("cuCtxSetCurrent", primary));
  use_streams(part.green, before);
  say_result("destroy it", call("cuGreenCtxDestroy", part.green));
  say_result("use the primary", call("cuCtxSynchronize"));
  say_result("free the primary's", call("cuMemFree_v2", before));
}

void green_contexts_gone() {
  const Context primary = use(0);
  const Part part = make_part();
  say_result("make it current", call("cuCtxSetCurrent", part.context));
  const Address memory = plain(kBytes, 2);
  say_result("primary again", call("cuCtxSetCurrent", primary));
  say_result("destroy it", call("cuGreenCtxDestroy", part.green));
  settle();
  unsigned word = 0;
  say_result("copy from its memory", call("cuMemcpyDtoH_v2", static_cast<void*>(&word), memory, sizeof word));
  Context of_memory = nullptr;
  say_result("whose memory", call("cuPointerGetAttribute", static_cast<void*>(&of_memory), kContextAttribute, memory));
  say("it is the primary's: %d", of_memory == primary);
  say_result("free", call("cuMemFree_v2", memory));
  say_result("use the primary", call("cuCtxSynchronize"));
}

}  // namespace answers
