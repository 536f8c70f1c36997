// Every name that the real driver exports exists: those that the stand-in implements replace these weak definitions, the others fail by
// name.
#include <atomic>
#include <cstdio>

namespace {

int not_there(const char* symbol, std::atomic<bool>& told) {
  if (!told.exchange(true)) std::fprintf(stderr, "simgpu: %s is not implemented; returning CUDA_ERROR_NOT_SUPPORTED\n", symbol);
  return 801;
}

}  // namespace

#define SIM_ENTRY(symbol, base, version, per_thread)                  \
  extern "C" [[gnu::weak, gnu::visibility("default")]] int symbol() { \
    static std::atomic<bool> told{false};                             \
    return not_there(#symbol, told);                                  \
  }
#include "simgpu/entry_points.inc"
#undef SIM_ENTRY
