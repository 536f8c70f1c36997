// Contexts that are attached to, and their end.
#include "answers/answers.h"

namespace answers {
namespace {

constexpr size_t kBytes = 64 << 10;

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

}  // namespace answers
