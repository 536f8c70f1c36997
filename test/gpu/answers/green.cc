// Green contexts: parts of a primary context. What becomes of their memory when they end is not documented.
#include "answers/answers.h"

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

}  // namespace

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
