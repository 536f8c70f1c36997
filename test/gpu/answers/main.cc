// answers --list | answers SEQUENCE [--warm | --cold] [--go FILE] [--multicast]
//
// --warm: a kernel runs first, so that a program under nvshare has had its first turn. --cold: memory is not written before the calls that
// are asked about, so that they come before the first turn. Exit status: 0, 2 usage, 3 the sequence cannot go on.
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>

#include "answers/answers.h"
#include "driver.h"

namespace answers {
namespace {

constexpr Sequence kSequences[] = {
    {"virtual_calls", 1, virtual_calls},
    {"virtual_handles", 1, virtual_handles},
    {"pointers", 1, pointers},
    {"refusals", 1, refusals},
    {"array_copies", 1, array_copies},
    {"for_managed_memory", 1, for_managed_memory},
    {"pools", 1, pools},
    {"captured_calls", 1, captured_calls},
    {"captured_elsewhere", 1, captured_elsewhere},
    {"freed_in_captures", 1, freed_in_captures},
    {"beside_captures", 1, beside_captures},
    {"copies_beside_captures", 1, copies_beside_captures},
    {"memop_graphs", 1, memop_graphs},
    {"stream_ordered", 1, stream_ordered},
    {"freed_twice", 0, freed_twice},
    {"freed_beside", 1, freed_beside},
    {"freed_in_order", 1, freed_in_order},
    {"mapped_without_access", 1, mapped_without_access},
    {"attached_to_streams", 1, attached_to_streams},
    {"textures", 1, textures},
    {"hand_graphs", 1, hand_graphs},
    {"hand_graphs_updated", 1, hand_graphs_updated},
    {"hand_graphs_elsewhere", 1, hand_graphs_elsewhere},
    {"handles_without_context", 1, handles_without_context},
    {"attached_contexts", 1, attached_contexts},
    {"refused_frees_in_captures", 1, refused_frees_in_captures},
    {"attached_primary", 1, attached_primary},
    {"detached_primary", 1, detached_primary},
    {"gone_contexts", 1, gone_contexts},
    {"pools_outlive_resets", 1, pools_outlive_resets},
    {"pools_outlive_contexts", 1, pools_outlive_contexts},
    {"plain_after_pools", 1, plain_after_pools},
    {"asked_of_gone_contexts", 1, asked_of_gone_contexts},
    {"freed_in_gone_contexts", 1, freed_in_gone_contexts},
    {"small_mappings", 1, small_mappings},
    {"pool_mappings", 1, pool_mappings},
    {"green_contexts", 1, green_contexts},
    {"green_contexts_gone", 1, green_contexts_gone},
    {"green_streams", 1, green_streams},
    {"green_batches", 1, green_batches},
    {"green_batches_alone", 1, green_batches_alone},
    {"host_pointers", 1, host_pointers},
    {"changed_copies", 1, changed_copies},
    {"two_gpus_changed_copies", 2, two_gpus_changed_copies},
    {"copies_changed_later", 1, copies_changed_later},
    {"changed_nodes", 0, changed_nodes},
    {"two_gpus", 2, two_gpus},
    {"two_gpus_apart", 2, two_gpus_apart},
    {"two_gpus_graphs", 2, two_gpus_graphs},
    {"two_gpus_pools", 2, two_gpus_pools},
    {"two_gpus_pools_in_rows", 2, two_gpus_pools_in_rows},
    {"two_gpus_peers_of_contexts", 2, two_gpus_peers_of_contexts},
    {"two_gpus_elsewhere", 2, two_gpus_elsewhere},
    {"two_gpus_pools_opened", 2, two_gpus_pools_opened},
    {"two_gpus_fills", 2, two_gpus_fills},
};

struct Options {
  const char* go = nullptr;
  bool warm = false;
  bool cold = false;
  bool multicast = false;
} options;

std::vector<unsigned char> pattern(size_t bytes, uint32_t seed) {
  std::vector<unsigned char> data(bytes);
  uint32_t word = seed * 2654435761u + 1;
  for (unsigned char& each : data) {
    word = word * 1664525u + 1013904223u;
    each = static_cast<unsigned char>(word >> 24);
  }
  return data;
}

}  // namespace

void* find(const char* name) {
  static void* const kLibrary = dlopen("libcuda.so.1", RTLD_NOW);
  return kLibrary != nullptr ? dlsym(kLibrary, name) : nullptr;
}

void say(const char* format, ...) {
  std::fputs("> ", stdout);  // told apart from what libraries print
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::putchar('\n');
  std::fflush(stdout);
}

int device_count() {
  int count = 0;
  must("cuDeviceGetCount", &count);
  return count;
}

Context use(int device) {
  Context context = nullptr;
  must("cuDevicePrimaryCtxRetain", &context, device);
  must("cuCtxSetCurrent", context);
  return context;
}

void run_kernel() {
  gputest::CUfunction noop = gputest::kernel("sim_noop");
  must("cuLaunchKernel", noop, 1u, 1u, 1u, 1u, 1u, 1u, 0u, Stream{nullptr}, static_cast<void**>(nullptr), static_cast<void**>(nullptr));
  must("cuCtxSynchronize");
}

void settle() {
  if (options.go == nullptr) return;
  std::fprintf(stderr, "standing still\n");
  while (access(options.go, F_OK) != 0) usleep(5000);
}

bool multicast_allowed() { return options.multicast; }

void write_pattern(Address address, size_t bytes, uint32_t seed) {
  if (options.cold) return;
  const std::vector<unsigned char> data = pattern(bytes, seed);
  must("cuMemcpyHtoD_v2", address, static_cast<const void*>(data.data()), bytes);
}

bool has_pattern(Address address, size_t bytes, uint32_t seed) {
  if (options.cold) return true;
  std::vector<unsigned char> data(bytes);
  must("cuMemcpyDtoH_v2", static_cast<void*>(data.data()), address, bytes);
  return data == pattern(bytes, seed);
}

}  // namespace answers

int main(int argc, char** argv) {
  using namespace answers;
  const char* wanted = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--list") {
      for (const Sequence& each : kSequences) std::printf("%s %d\n", each.name, each.devices);
      return 0;
    }
    if (word == "--warm") {
      options.warm = true;
    } else if (word == "--cold") {
      options.cold = true;
    } else if (word == "--multicast") {
      options.multicast = true;
    } else if (word == "--go" && i + 1 < argc) {
      options.go = argv[++i];
    } else {
      wanted = argv[i];
    }
  }
  for (const Sequence& each : kSequences) {
    if (wanted == nullptr || std::strcmp(wanted, each.name) != 0) continue;
    must("cuInit", 0u);
    if (device_count() < each.devices) {
      std::fprintf(stderr, "%s needs %d GPUs\n", each.name, each.devices);
      return 2;
    }
    if (options.warm) {
      use(0);
      run_kernel();
    }
    each.run();
    say("end of %s", each.name);
    return 0;
  }
  std::fprintf(stderr, "answers --list | answers SEQUENCE [--warm | --cold] [--go FILE] [--multicast]\n");
  return 2;
}
