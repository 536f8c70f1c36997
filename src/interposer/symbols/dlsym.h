// dlsym, dlvsym, dlopen and dlmopen: libnvshare.so exports its own (dlsym.S), so that a program that looks up the driver's functions gets
// our hooks, wherever it looks from.
//
// The exported functions keep the caller's return address: for every name that is not a hook's they jump on to the real one, which sees
// the caller as if we were not there (RTLD_NEXT and RTLD_DEFAULT depend on the caller). Safe at any moment, from any thread; for other
// names without locks or memory.
#pragma once

namespace nvshare::interposer {

using DlsymFunction = void* (*)(void* handle, const char* name);
using DlvsymFunction = void* (*)(void* handle, const char* name, const char* version);

// glibc's own, not another interposer's. Null only if libc cannot be found.
DlsymFunction real_dlsym();

// What the thunk does next: jump to `target` with the caller's registers, or, if that is null, return `value`.
struct Route {
  void* target;
  void* value;
};

enum class LookupFunction { kDlsym, kDlvsym, kDlopen, kDlmopen };
// glibc's own of each.
void* real_lookup(LookupFunction function);
// Ours of that name; null: it is none of them. Calls nothing.
void* own_lookup(const char* name);

// Whether `function` is what a copy of the driver has by that name: the one that we know, or another one in the process.
bool driver_owns(const void* function, const char* name);
// Some library may have a copy of the driver in a namespace of its own. The process uses one driver all the same, that of our namespace.
void driver_may_have_copies();
// What stands for a function of the driver in any namespace: its hook, or a stub, or the one driver's own; null: it has none.
void* one_drivers(const char* name);

}  // namespace nvshare::interposer
