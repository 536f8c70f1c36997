// A library that is opened so that it does not see what is preloaded (RTLD_DEEPBIND, dlmopen), and uses the driver: linked with it, and by
// lookups of its own.
#define _GNU_SOURCE
#include <dlfcn.h>

int cuMemAlloc_v2();
int cuInit();

void* deep_lookup(void* handle, const char* name) { return dlsym(handle, name); }
void* deep_lookup_from(const char* file, const char* name) {
  void* handle = dlopen(file, RTLD_LAZY);
  return handle != 0 ? dlsym(handle, name) : 0;
}
void* deep_reference(void) { return (void*)&cuMemAlloc_v2; }
int deep_call(void) { return cuInit(); }
int cuvidCreateDecoder(void** decoder, void* parameters) {
  *decoder = parameters;
  return 1234;
}
int number_of_library(void) { return 77; }
int deep_number(void) { return number_of_library(); }
