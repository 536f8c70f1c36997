// Two of these, loaded one after the other, show what RTLD_NEXT means to code in a shared library.
#include <dlfcn.h>

#ifndef NEXT_LIBRARY_NUMBER
#error "NEXT_LIBRARY_NUMBER: 1 or 2"
#endif

namespace {

int function_behind_me(void* (*lookup)()) {
  const auto next = reinterpret_cast<int (*)()>(lookup());
  return next != nullptr ? next() : 0;
}

void* by_dlsym() { return dlsym(RTLD_NEXT, "number_of_library"); }
void* first_of_all() { return dlsym(RTLD_DEFAULT, "number_of_library"); }

// Before any constructor of the main program, and with another library preloaded around ours: lookups must work already.
struct Early {
  Early() : address(dlsym(RTLD_NEXT, "malloc")) {}
  void* address;
} early;

}  // namespace

extern "C" {

int number_of_library() { return NEXT_LIBRARY_NUMBER; }

#if NEXT_LIBRARY_NUMBER == 1
int next_of_library_1() { return function_behind_me(by_dlsym); }
int default_of_library_1() { return function_behind_me(first_of_all); }
void* early_lookup_of_library_1() { return early.address; }
#else
int next_of_library_2() { return function_behind_me(by_dlsym); }
int default_of_library_2() { return function_behind_me(first_of_all); }
void* early_lookup_of_library_2() { return early.address; }
#endif
}
