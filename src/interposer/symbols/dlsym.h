// dlsym and dlvsym: libnvshare.so exports its own (dlsym.S), so that a program that looks up the driver's functions gets our hooks.
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

}  // namespace nvshare::interposer
