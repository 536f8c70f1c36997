/* A stand-in for libnvcuvid.so: writes to GPU memory by the driver's own functions, which it finds as no program does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

typedef int (*Fill)(unsigned long long, unsigned char, unsigned long long, void*);

/* By the driver's own tables: a library of the driver's vendor calls it by ways of its own. */
static void* function_of(void* driver, const char* wanted) {
  struct link_map* map = 0;
  if (dlinfo(driver, RTLD_DI_LINKMAP, &map) != 0) return 0;
  const ElfW(Sym)* symbols = 0;
  const char* strings = 0;
  const ElfW(Dyn) * entry;
  for (entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = (const void*)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) strings = (const void*)entry->d_un.d_ptr;
  }
  if (symbols == 0 || strings == 0) return 0;
  for (const ElfW(Sym)* symbol = symbols; (const char*)symbol < strings; ++symbol) {
    if (symbol->st_value != 0 && strcmp(strings + symbol->st_name, wanted) == 0) return (void*)(map->l_addr + symbol->st_value);
  }
  return 0;
}

int cuvidCreateDecoder(void** decoder, void* driver) {
  *decoder = function_of(driver, "cuMemsetD8Async");
  return *decoder == 0;
}

int cuvidDecodePicture(void* decoder, unsigned long long target, unsigned long long bytes) {
  return ((Fill)decoder)(target, 0x55, bytes, 0);
}
