// Contexts that are attached to, that end, and that are gone.
#include <thread>

#include "answers/answers.h"

namespace answers {
namespace {

constexpr size_t kBytes = 4 * kMiB;

}  // namespace

// As PyCUDA's kind of programs hold contexts.
void attached_contexts() {
  Context context = nullptr, again = nullptr;
  must("cuCtxCreate_v2", &context, 0u, 0);
  Address address = 0;
  must("cuMemAlloc_v2", &address, kBytes);
  say_result("attach", call("cuCtxAttach", &again, 0u));
  say("the same: %d", again == context);
  say_result("detach", call("cuCtxDetach", context));
  say_result("allocate", call("cuMemsetD8_v2", address, static_cast<unsigned char>(1), kBytes));
  say_result("detach again", call("cuCtxDetach", context));
  Context current = nullptr;
  say_result("current", call("cuCtxGetCurrent", &current));
  say("none is current: %d", current == nullptr);
  use(0);
  unsigned type = 0;
  say_result("its memory", call("cuPointerGetAttribute", static_cast<void*>(&type), 2, address));
  say_result("attach with flags", call("cuCtxAttach", &again, 5u));
  say_result("attach the primary", call("cuCtxAttach", &again, 0u));
  say_result("detach the primary", call("cuCtxDetach", use(0)));
}

namespace {

void say_state(const char* when) {
  unsigned flags = 0;
  int active = -1;
  say_result(when, call("cuDevicePrimaryCtxGetState", 0, &flags, &active));
  say("active: %d", active);
}

void say_memory(Address kept) {
  unsigned type = 0;
  Address address = 0;
  say_result("its memory", call("cuPointerGetAttribute", static_cast<void*>(&type), 2, kept));
  say_result("allocate", call("cuMemAlloc_v2", &address, kBytes));
}

}  // namespace

// Who keeps the primary context: those who retained it, or those who attached to it, too?
void attached_primary() {
  Context context = use(0), again = nullptr;
  Address kept = 0;
  must("cuMemAlloc_v2", &kept, kBytes);
  say_result("attach", call("cuCtxAttach", &again, 0u));
  say("the same: %d", again == context);
  say_result("attach once more", call("cuCtxAttach", &again, 0u));
  say_result("release", call("cuDevicePrimaryCtxRelease_v2", 0));
  say_state("released");
  say_memory(kept);
  say_result("detach", call("cuCtxDetach", context));
  say_state("detached");
  say_result("detach once more", call("cuCtxDetach", context));
  say_state("detached twice");
  say_result("release once more", call("cuDevicePrimaryCtxRelease_v2", 0));
  use(0);
  say_state("retained");
  must("cuMemAlloc_v2", &kept, kBytes);
  say_memory(kept);
}

// Detached more often than attached to.
void detached_primary() {
  Context context = use(0), again = nullptr;
  use(0);
  Address kept = 0;
  must("cuMemAlloc_v2", &kept, kBytes);
  say_result("attach", call("cuCtxAttach", &again, 0u));
  say_result("detach", call("cuCtxDetach", context));
  say_state("detached");
  say_memory(kept);
  say_result("detach once more", call("cuCtxDetach", context));
  say_state("detached twice");
  say_memory(kept);
  say_result("detach a third time", call("cuCtxDetach", context));
  say_state("detached three times");
  say_memory(kept);
  say_result("release", call("cuDevicePrimaryCtxRelease_v2", 0));
  say_state("released");
  say_memory(kept);
  say_result("release once more", call("cuDevicePrimaryCtxRelease_v2", 0));
  say_state("released twice");
}

namespace {

// What makes memory, or names some of a context that is there, in a thread whose current context is gone.
void allocate_without_context(const char* when, Address kept, Address pooled) {
  say("%s", when);
  Address address = 0;
  size_t pitch = 0, free_bytes = 0, total_bytes = 0;
  void* array = nullptr;
  struct {
    size_t width, height;
    int format;
    unsigned channels;
  } flat{64, 4, 1, 1};
  struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
  } solid{64, 4, 2, 1, 1, 0};
  say_result("allocate", call("cuMemAlloc_v2", &address, kBytes));
  say_result("allocate a row", call("cuMemAllocPitch_v2", &address, &pitch, size_t{100}, size_t{3}, 4u));
  say_result("allocate in order", call("cuMemAllocAsync", &address, kBytes, static_cast<void*>(nullptr)));
  say_result("allocate managed", call("cuMemAllocManaged", &address, kBytes, 1u));
  say_result("make an array", call("cuArrayCreate_v2", &array, static_cast<const void*>(&flat)));
  say_result("make one of three dimensions", call("cuArray3DCreate_v2", &array, static_cast<const void*>(&solid)));
  say_result("how much is free", call("cuMemGetInfo_v2", &free_bytes, &total_bytes));
  unsigned char handle[64] = {};
  unsigned type = 0;
  say_result("the range of other memory", call("cuMemGetAddressRange_v2", &address, &free_bytes, kept));
  say_result("the range of a pool's", call("cuMemGetAddressRange_v2", &address, &free_bytes, pooled));
  say_result("its type", call("cuPointerGetAttribute", static_cast<void*>(&type), 2, kept));
  say_result("hand it over", call("cuIpcGetMemHandle", static_cast<void*>(handle), kept));
  say_result("hand nothing over", call("cuIpcGetMemHandle", static_cast<void*>(handle), Address{0}));
  say_result("free it in order", call("cuMemFreeAsync", pooled, static_cast<void*>(nullptr)));
  say_result("free it", call("cuMemFree_v2", kept));
  say_result("free nothing", call("cuMemFree_v2", Address{0}));
}

}  // namespace

// A context stays on a thread's stack when it is destroyed by another thread, and a primary one when it is reset or released.
void gone_contexts() {
  Context made = nullptr, stays = nullptr;
  Address address = 0, kept = 0, pooled = 0;
  must("cuCtxCreate_v2", &stays, 0u, 0);
  must("cuMemAlloc_v2", &kept, kBytes);
  must("cuMemAllocAsync", &pooled, kBytes, static_cast<void*>(nullptr));
  must("cuCtxCreate_v2", &made, 0u, 0);
  must("cuMemAlloc_v2", &address, kBytes);
  std::thread([&] { must("cuCtxDestroy_v2", made); }).join();
  allocate_without_context("destroyed by another thread", kept, pooled);
  use(0);
  must("cuMemAlloc_v2", &address, kBytes);
  must("cuDevicePrimaryCtxReset_v2", 0);
  allocate_without_context("reset", kept, pooled);
  must("cuCtxSetCurrent", stays);
  say_result("freed where it is", call("cuMemFree_v2", kept));
  use(0);
  say_result("there again", call("cuMemAlloc_v2", &address, kBytes));
  say_result("written", call("cuMemsetD8_v2", address, static_cast<unsigned char>(1), kBytes));
}

namespace {

struct Outliving {
  Address plain = 0, small = 0, large = 0, freed = 0;  // all but the first from a pool
};

// In the current context, small ones beside each other.
Outliving outliving() {
  Outliving made;
  must("cuMemAlloc_v2", &made.plain, size_t{1000});
  must("cuMemAllocAsync", &made.small, size_t{1000}, Stream{nullptr});
  must("cuMemAllocAsync", &made.large, kBytes, Stream{nullptr});
  must("cuMemAllocAsync", &made.freed, size_t{1000}, Stream{nullptr});
  write_pattern(made.plain, 1000, 1);
  write_pattern(made.small, 1000, 2);
  write_pattern(made.large, kBytes, 3);
  must("cuMemFreeAsync", made.freed, Stream{nullptr});
  return made;
}

void say_what_is_there(const char* when, const Outliving& made) {
  say("%s", when);
  const std::pair<const char*, Address> all[] = {{"plain", made.plain}, {"small", made.small}, {"large", made.large}};
  for (const auto& [name, address] : all) {
    unsigned type = 0;
    Context context = nullptr;
    say_result(name + std::string(", its type"), call("cuPointerGetAttribute", static_cast<void*>(&type), 2, address));
    if (address != made.plain) say_result("its context", call("cuPointerGetAttribute", static_cast<void*>(&context), 1, address));
  }
}

// By a context that was made afterwards.
void use_what_is_there(const Outliving& made) {
  Address beside = 0, later = 0, base = 0;
  size_t bytes = 0;
  std::vector<unsigned char> host(kBytes);
  must("cuMemAlloc_v2", &beside, size_t{1000});
  must("cuMemAllocAsync", &later, size_t{1000}, Stream{nullptr});
  write_pattern(beside, 1000, 4);
  write_pattern(later, 1000, 5);
  say("they lie apart: %d", beside != made.small && later != made.small && beside != later);
  say_result("copy the small one", call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), made.small, size_t{1000}));
  say_result("copy the large one", call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), made.large, kBytes));
  say("their bytes: %d %d", has_pattern(made.small, 1000, 2), has_pattern(made.large, kBytes, 3));
  say_result("where it begins", call("cuMemGetAddressRange_v2", &base, &bytes, made.large + 100));
  say("that is it: %d %zu", base == made.large, bytes);
  say_result("fill it", call("cuMemsetD8_v2", made.large, static_cast<unsigned char>(1), kBytes));
  say_result("free the one that was freed", call("cuMemFree_v2", made.freed == later ? Address{64} : made.freed));
  say_result("free the small one in order", call("cuMemFreeAsync", made.small, Stream{nullptr}));
  say_result("free the large one", call("cuMemFree_v2", made.large));
  say_result("wait", call("cuCtxSynchronize"));
  say("others are there: %d %d", has_pattern(beside, 1000, 4), has_pattern(later, 1000, 5));
  say_result("free the large one again", call("cuMemFree_v2", made.large));
  must("cuMemFree_v2", beside);
  must("cuMemFree_v2", later);
}

}  // namespace

// Memory of pools is the GPU's and not the context's: it stays when the primary context is reset or released.
void pools_outlive_resets() {
  use(0);
  const Outliving first = outliving();
  settle();
  must("cuDevicePrimaryCtxReset_v2", 0);
  say_what_is_there("reset", first);
  use(0);
  use_what_is_there(first);
  const Outliving second = outliving();
  while (call("cuDevicePrimaryCtxRelease_v2", 0) == 0) {
  }
  say_what_is_there("released", second);
  use(0);
  use_what_is_there(second);
}

// The same of a context that the program made, while another one stays.
void pools_outlive_contexts() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  const Outliving memory = outliving();
  settle();
  must("cuCtxDestroy_v2", made);
  say_what_is_there("destroyed", memory);
  must("cuCtxSetCurrent", primary);
  use_what_is_there(memory);
}

// Plain memory may come to lie where memory of a pool was whose context is gone.
void plain_after_pools() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  for (const size_t bytes : {size_t{1000}, 3 * kMiB}) {
    Address pooled = 0;
    must("cuMemAllocAsync", &pooled, bytes, Stream{nullptr});
    write_pattern(pooled, bytes, 2);
  }
  settle();
  must("cuCtxDestroy_v2", made);
  must("cuCtxSetCurrent", primary);
  for (const size_t bytes : {size_t{1000}, 3 * kMiB}) {
    bool of_it = true;
    for (int i = 0; i < 4; ++i) {
      Address plain = 0;
      Context context = nullptr;
      must("cuMemAlloc_v2", &plain, bytes);
      must("cuPointerGetAttribute", static_cast<void*>(&context), 1, plain);
      of_it = of_it && context == primary;
    }
    say("%zu bytes, all of the context: %d", bytes, of_it);
  }
}

// What is asked once the primary context is gone: of memory of a pool, which stays, and of handles.
void asked_of_gone_contexts() {
  use(0);
  Address pooled = 0, told = 1;
  must("cuMemAllocAsync", &pooled, size_t{1000}, Stream{nullptr});
  must("cuCtxSynchronize");
  must("cuDevicePrimaryCtxReset_v2", 0);
  int attributes[] = {3};  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
  void* places[] = {&told};
  say_result("its address for a kernel", call("cuPointerGetAttribute", static_cast<void*>(&told), 3, pooled));
  told = 1;
  say_result("among several", call("cuPointerGetAttributes", 1u, attributes, places, pooled));
  say("told: %d", told == 0 ? 0 : told == pooled ? 2 : 1);
  struct {
    unsigned char bytes[64];
  } handle = {};
  say_result("open a handle, no flags", call("cuIpcOpenMemHandle_v2", &told, handle, 0u));
  say_result("with flags", call("cuIpcOpenMemHandle_v2", &told, handle, 1u));
  say_result("none is current", call("cuCtxSetCurrent", Context{nullptr}));
  say_result("its address for a kernel", call("cuPointerGetAttribute", static_cast<void*>(&told), 3, pooled));
  told = 1;
  say_result("among several", call("cuPointerGetAttributes", 1u, attributes, places, pooled));
  say("told: %d", told == 0 ? 0 : told == pooled ? 2 : 1);
}

// Memory that was freed before its context ended goes once.
void freed_in_gone_contexts() {
  const Context primary = use(0);
  Context made = nullptr;
  must("cuCtxCreate_v2", &made, 0u, 0);
  for (const size_t bytes : {size_t{1000}, size_t{300000}, 4 * kMiB}) {
    Address memory = 0;
    must("cuMemAlloc_v2", &memory, bytes);
    write_pattern(memory, bytes, 3);
    must("cuMemFree_v2", memory);
  }
  must("cuCtxDestroy_v2", made);
  must("cuCtxSetCurrent", primary);
  Address memory = 0;
  say_result("allocate", call("cuMemAlloc_v2", &memory, size_t{1000}));
  write_pattern(memory, 1000, 4);
  say("written: %d", has_pattern(memory, 1000, 4) ? 1 : 0);
  say_result("free", call("cuMemFree_v2", memory));
}

}  // namespace answers
