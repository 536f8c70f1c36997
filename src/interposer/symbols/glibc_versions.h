// Included ahead of every source of libnvshare.so by the compiler's command line. Binds functions that got a new symbol version in glibc
// 2.18 or later to the one they had before: a preloaded library that asks for a version that a container's glibc lacks kills every process.
//
// A function that exists only since then must not be used at all (std::from_chars instead of strtoull, which newer compilers turn into
// __isoc23_strtoull; no fstat before 2.33; no gettid, pthread_cond_clockwait, memfd_create ...: make the system call). abi_test.py refuses
// both.
#pragma once

#ifdef __linux__

#include <features.h>

// glibc 2.38 and later turn strtol, scanf and their kin into functions of their own (__isoc23_strtol) for callers that speak C23, as every
// C++ program is taken to do. The macro's name changed in 2.40.
#ifdef __GLIBC_USE_C2X_STRTOL
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#endif
#ifdef __GLIBC_USE_C23_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
#endif

// NVSHARE_BIND(function, the version it has had on x86-64). On aarch64 everything began with 2.17.
#if defined(__x86_64__)
#define NVSHARE_BIND(function, version) __asm__(".symver " #function "," #function "@GLIBC_" #version)
#else
#define NVSHARE_BIND(function, version) __asm__(".symver " #function "," #function "@GLIBC_2.17")
#endif

NVSHARE_BIND(dladdr, 2.2.5);
NVSHARE_BIND(dladdr1, 2.3.3);
NVSHARE_BIND(dlclose, 2.2.5);
NVSHARE_BIND(dlerror, 2.2.5);
NVSHARE_BIND(dlinfo, 2.3.3);
NVSHARE_BIND(dlopen, 2.2.5);
NVSHARE_BIND(pthread_attr_getstack, 2.2.5);
NVSHARE_BIND(pthread_attr_setguardsize, 2.2.5);
NVSHARE_BIND(pthread_attr_setstacksize, 2.2.5);
NVSHARE_BIND(pthread_condattr_setclock, 2.3.3);
NVSHARE_BIND(pthread_create, 2.2.5);
NVSHARE_BIND(pthread_detach, 2.2.5);
NVSHARE_BIND(pthread_getaffinity_np, 2.3.4);
NVSHARE_BIND(pthread_getattr_np, 2.2.5);
NVSHARE_BIND(pthread_getspecific, 2.2.5);
NVSHARE_BIND(pthread_join, 2.2.5);
NVSHARE_BIND(pthread_key_create, 2.2.5);
NVSHARE_BIND(pthread_key_delete, 2.2.5);
NVSHARE_BIND(pthread_kill, 2.2.5);
NVSHARE_BIND(pthread_mutex_timedlock, 2.2.5);
NVSHARE_BIND(pthread_mutex_trylock, 2.2.5);
NVSHARE_BIND(pthread_mutexattr_destroy, 2.2.5);
NVSHARE_BIND(pthread_mutexattr_init, 2.2.5);
NVSHARE_BIND(pthread_mutexattr_settype, 2.2.5);
NVSHARE_BIND(pthread_once, 2.2.5);
NVSHARE_BIND(pthread_rwlock_destroy, 2.2.5);
NVSHARE_BIND(pthread_rwlock_init, 2.2.5);
NVSHARE_BIND(pthread_rwlock_rdlock, 2.2.5);
NVSHARE_BIND(pthread_rwlock_unlock, 2.2.5);
NVSHARE_BIND(pthread_rwlock_wrlock, 2.2.5);
NVSHARE_BIND(pthread_setaffinity_np, 2.3.4);
NVSHARE_BIND(pthread_setname_np, 2.12);
NVSHARE_BIND(pthread_setspecific, 2.2.5);
NVSHARE_BIND(pthread_sigmask, 2.2.5);
NVSHARE_BIND(sem_destroy, 2.2.5);
NVSHARE_BIND(sem_init, 2.2.5);
NVSHARE_BIND(sem_post, 2.2.5);
NVSHARE_BIND(sem_timedwait, 2.2.5);
NVSHARE_BIND(sem_trywait, 2.2.5);
NVSHARE_BIND(sem_wait, 2.2.5);
NVSHARE_BIND(shm_open, 2.2.5);
NVSHARE_BIND(shm_unlink, 2.2.5);

#undef NVSHARE_BIND

#endif
