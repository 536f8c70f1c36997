// Which mutex guards what, said so that clang holds the code to it (-Wthread-safety, an error in `./dev lint`). Other compilers see
// nothing. The names and their meaning are clang's: https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
//
// The analysis knows one function at a time. A function that is called with the mutex held says REQUIRES(mutex_), and so does a lambda.
#pragma once

#if defined(__clang__)
#define NVSHARE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define NVSHARE_THREAD_ANNOTATION(x)
#endif

// Abseil, which gRPC's headers include, defines some of the names, to the same meaning.
#undef GUARDED_BY
#undef PT_GUARDED_BY
#undef NO_THREAD_SAFETY_ANALYSIS

// Of classes: a mutex, and what holds one for as long as it lives.
#define CAPABILITY(name) NVSHARE_THREAD_ANNOTATION(capability(name))
#define SCOPED_CAPABILITY NVSHARE_THREAD_ANNOTATION(scoped_lockable)

// Of members: read and written with the mutex held only; PT_: what the pointer points to.
#define GUARDED_BY(mutex) NVSHARE_THREAD_ANNOTATION(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) NVSHARE_THREAD_ANNOTATION(pt_guarded_by(mutex))

// Of functions: called with the mutex held, and it is held on return; never called with it held.
#define REQUIRES(...) NVSHARE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) NVSHARE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Of functions that lock and unlock.
#define ACQUIRE(...) NVSHARE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) NVSHARE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) NVSHARE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

// Of functions that the analysis is to leave alone. A comment says why.
#define NO_THREAD_SAFETY_ANALYSIS NVSHARE_THREAD_ANNOTATION(no_thread_safety_analysis)
