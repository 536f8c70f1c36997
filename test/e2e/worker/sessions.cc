// A program that uses one of the driver's other libraries, which submit work that no hook sees: a stand-in for it (fake_video.c).
#include <dlfcn.h>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {

namespace {

void* decoder = nullptr;
void* loaded_first = nullptr;

// The library of the decoder, or one that is linked with it and has names of its own.
void* function_of(void* library, const char* name, const char* own_name) {
  void* const found = dlsym(library, own_name);
  return found != nullptr ? found : dlsym(library, name);
}

void open_session(void* library) {
  using Create = int (*)(void** decoder, void* driver);
  const auto create = reinterpret_cast<Create>(function_of(library, "cuvidCreateDecoder", "create_decoder"));
  if (create == nullptr || create(&decoder, dlopen("libcuda.so.1", RTLD_LAZY)) != 0) fail(kExitUnexpected, "no decoder");
}

void* open_library(const Options& options) {
  if (loaded_first != nullptr) return loaded_first;
  void* library = dlopen(options.text("library", "").c_str(), RTLD_LAZY);
  if (library == nullptr) fail(kExitUnexpected, "%s", dlerror());
  return library;
}

}  // namespace

// Before the program's first call of the driver.
void open_session_early(const Options& options) { open_session(open_library(options)); }

// The library alone.
void load_library_early(const Options& options) { loaded_first = open_library(options); }

// Loads the library, stands still, opens a session, and has it write to memory at any time.
void run_session(const Options& options) {
  retain_primary();
  Desk desk;
  const size_t bytes = options.number("hold", 96u << 20);
  auto block = filled(desk.place, bytes, 7);
  block->verify_checksum(desk.scratch);
  void* library = open_library(options);
  using Decode = int (*)(void* decoder, unsigned long long target, unsigned long long bytes);
  const auto decode = reinterpret_cast<Decode>(function_of(library, "cuvidDecodePicture", "decode_picture"));
  if (decode == nullptr) fail(kExitUnexpected, "the library lacks something");
  stand_still(options);
  if (decoder == nullptr) open_session(library);
  say("opened");
  while (!options.told_to_stop()) {
    if (decode(decoder, block->address(), bytes) != 0) fail(kExitCudaError, "the decoder fails");
    usleep(1000);
  }
}

}  // namespace nvshare::e2e
