// Libraries that are opened so that they do not see us: with RTLD_DEEPBIND their own libraries come before ours in their search, and in a
// namespace of their own (dlmopen) there is nothing of ours. They are opened as they were meant to be, and their references to functions
// that have a hook are set to it. Their constructors have run by then; those that use the GPU's driver at once are not seen.
//
// All other calls jump on to glibc's own with the caller's return address, as if we were not there.
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "interposer/symbols/dlsym.h"
#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/references.h"

namespace nvshare::interposer {
namespace {

using DlopenFunction = void* (*)(const char* file, int flags);
using DlmopenFunction = void* (*)(Lmid_t space, const char* file, int flags);

// Looks for `file` in a list of folders as an object names them; `origin` is the object's own folder.
bool find_in(const char* folders, const char* file, const char* origin, char* path) {
  while (folders != nullptr && *folders != '\0') {
    const size_t length = strcspn(folders, ":");
    char folder[PATH_MAX];
    int written = -1;
    if (strncmp(folders, "$ORIGIN", 7) == 0 || strncmp(folders, "${ORIGIN}", 9) == 0) {
      const size_t word = folders[1] == '{' ? 9 : 7;
      written = snprintf(folder, sizeof folder, "%s%.*s", origin, static_cast<int>(length - word), folders + word);
    } else {
      written = snprintf(folder, sizeof folder, "%.*s", static_cast<int>(length), folders);
    }
    if (written > 0 && static_cast<size_t>(written) < sizeof folder) {
      written = snprintf(path, PATH_MAX, "%s/%s", folder, file);
      if (written > 0 && written < PATH_MAX && access(path, R_OK) == 0) return true;
    }
    folders += length;
    if (*folders == ':') ++folders;
  }
  return false;
}

// What the caller means by `file`: an object may have folders of its own to look in, which the dynamic linker would take ours for.
const char* as_the_caller_means(const char* file, const void* caller, char* path) {
  if (file == nullptr || *file == '\0' || strchr(file, '/') != nullptr) return file;
  Dl_info info;
  void* extra = nullptr;
  if (dladdr1(caller, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return file;
  const ElfImage image(*static_cast<const link_map*>(extra));
  if (image.rpath() == nullptr && image.runpath() == nullptr) return file;
  char origin[PATH_MAX];
  snprintf(origin, sizeof origin, "%s", info.dli_fname != nullptr ? info.dli_fname : "");
  if (char* slash = strrchr(origin, '/')) *slash = '\0';
  // In the dynamic linker's order: RPATH, unless there is a RUNPATH; the environment; RUNPATH.
  if (image.runpath() == nullptr) return find_in(image.rpath(), file, origin, path) ? path : file;
  if (find_in(getenv("LD_LIBRARY_PATH"), file, origin, path)) return file;
  return find_in(image.runpath(), file, origin, path) ? path : file;
}

constinit std::atomic<bool> namespaces{false};  // there is one besides ours

// In the namespace `space`, which is not ours.
void* open_apart(Lmid_t space, const char* file, int flags) {
  // One driver serves the process: a second one would know nothing of the first one's contexts.
  const char* const slash = strrchr(file, '/');
  if (strncmp(slash != nullptr ? slash + 1 : file, "libcuda.so", 10) == 0) {
    return reinterpret_cast<DlopenFunction>(real_lookup(LookupFunction::kDlopen))(file, flags);
  }
  void* const handle = reinterpret_cast<DlmopenFunction>(real_lookup(LookupFunction::kDlmopen))(space, file, flags);
  link_map* object = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0) return handle;
  namespaces.store(true, std::memory_order_relaxed);
  driver_may_have_copies();
  hook_references_in_namespace_of(*object);
  return handle;
}

Lmid_t namespace_of(const void* caller) {
  Dl_info info;
  void* extra = nullptr;
  Lmid_t space = LM_ID_BASE;
  // glibc's handles are its objects.
  if (dladdr1(caller, &info, &extra, RTLD_DL_LINKMAP) != 0 && extra != nullptr) dlinfo(extra, RTLD_DI_LMID, &space);
  return space;
}

}  // namespace

// Called by dlsym.S only.
extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlopen(const char* file, int flags, const void*,
                                                                               const void* caller) {
  void* const real = real_lookup(LookupFunction::kDlopen);
  object_opens();
  if (file != nullptr && (flags & RTLD_NOLOAD) == 0 && namespaces.load(std::memory_order_relaxed)) {
    const Lmid_t space = namespace_of(caller);
    char path[PATH_MAX];
    if (space != LM_ID_BASE) return {nullptr, open_apart(space, as_the_caller_means(file, caller, path), flags)};
  }
  if ((flags & RTLD_DEEPBIND) == 0 || (flags & RTLD_NOLOAD) != 0 || file == nullptr || real == nullptr) return {real, nullptr};
  const auto open = reinterpret_cast<DlopenFunction>(real);
  char path[PATH_MAX];
  const char* meant = as_the_caller_means(file, caller, path);
  if (meant != file) {
    // One of that name that is loaded already comes before any folder.
    if (void* loaded = open(file, RTLD_LAZY | RTLD_NOLOAD)) {
      dlclose(loaded);
      meant = file;
    } else {
      dlerror();  // that failure is ours, not the program's
    }
  }
  const std::vector<uintptr_t> before = loaded_objects();
  void* const handle = open(meant, flags);
  if (handle != nullptr) hook_references_of_new_objects(before);
  return {nullptr, handle};
}

extern "C" [[gnu::used, gnu::visibility("hidden")]] Route nvshare_route_dlmopen(Lmid_t space, const char* file, int flags,
                                                                                const void* caller) {
  void* const real = real_lookup(LookupFunction::kDlmopen);
  if ((space == LM_ID_BASE && (flags & RTLD_DEEPBIND) == 0) || (flags & RTLD_NOLOAD) != 0 || file == nullptr || real == nullptr) {
    return {real, nullptr};
  }
  char path[PATH_MAX];
  const char* const meant = as_the_caller_means(file, caller, path);
  if (space != LM_ID_BASE) return {nullptr, open_apart(space, meant, flags)};
  const std::vector<uintptr_t> before = loaded_objects();
  void* const handle = reinterpret_cast<DlmopenFunction>(real)(space, meant, flags);
  if (handle != nullptr) hook_references_of_new_objects(before);
  return {nullptr, handle};
}

}  // namespace nvshare::interposer
