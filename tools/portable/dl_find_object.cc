// For programs that carry their own libgcc: its unwinder asks the C library for _dl_find_object, which came with glibc 2.35. This is the
// same by dl_iterate_phdr, which every glibc has, so that the programs of ./dev dist run with 2.34 as well. Slower, which only exceptions
// notice.
//
// The contract is that of <dlfcn.h> (glibc manual, "Dynamic Linker Introspection"): 0 and the object that contains `address`, else -1.
// Thread-safe.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>

#ifdef DLFO_EH_SEGMENT_TYPE

namespace {

struct Search {
  uintptr_t address;
  dl_find_object* result;
};

int look(dl_phdr_info* info, size_t, void* data) {
  const auto& search = *static_cast<Search*>(data);
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  uintptr_t unwind_table = 0;
  bool contains = false;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const uintptr_t first = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == DLFO_EH_SEGMENT_TYPE) unwind_table = first;
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t past = first + segment.p_memsz;
    if (first < begin) begin = first;
    if (past > end) end = past;
    contains = contains || (search.address >= first && search.address < past);
  }
  if (!contains) return 0;
  *search.result = {};
  search.result->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.result->dlfo_map_end = reinterpret_cast<void*>(end);
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(unwind_table);
  return 1;
}

}  // namespace

extern "C" int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search{reinterpret_cast<uintptr_t>(address), result};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

#endif
