// The address of a function as a loaded library exports it, read from the library's own symbol table: dlsym would give the hook of a
// preloaded library. Null when the library is not loaded, has no hash table or exports no such function. Thread-safe.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace bench {

struct Wanted {
  const char* library;  // a part of its file name
  const char* symbol;
  void* found;
};

// In a GNU hash table the number of symbols is not written down: it is the end of the last chain.
inline uint32_t count_symbols(const uint32_t* hash) {
  const uint32_t buckets = hash[0];
  const uint32_t first = hash[1];
  const uint32_t* bucket = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) {
    last = bucket[i] > last ? bucket[i] : last;
  }
  if (last < first) {
    return 0;
  }
  while ((chain[last - first] & 1) == 0) {
    ++last;
  }
  return last + 1;
}

inline int look_into(dl_phdr_info* info, size_t, void* data) {
  Wanted& wanted = *static_cast<Wanted*>(data);
  if (std::strstr(info->dlpi_name, wanted.library) == nullptr) {
    return 0;
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const uint32_t* old_hash = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) {
      continue;
    }
    for (const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); entry->d_tag != DT_NULL;
         ++entry) {
      // glibc has put addresses here; other dynamic linkers leave offsets.
      const ElfW(Addr) address = entry->d_un.d_ptr < info->dlpi_addr ? entry->d_un.d_ptr + info->dlpi_addr : entry->d_un.d_ptr;
      if (entry->d_tag == DT_SYMTAB) {
        symbols = reinterpret_cast<const ElfW(Sym)*>(address);
      } else if (entry->d_tag == DT_STRTAB) {
        strings = reinterpret_cast<const char*>(address);
      } else if (entry->d_tag == DT_GNU_HASH) {
        gnu_hash = reinterpret_cast<const uint32_t*>(address);
      } else if (entry->d_tag == DT_HASH) {
        old_hash = reinterpret_cast<const uint32_t*>(address);
      }
    }
  }
  if (symbols == nullptr || strings == nullptr || (gnu_hash == nullptr && old_hash == nullptr)) {
    return 0;
  }
  const uint32_t count = gnu_hash != nullptr ? count_symbols(gnu_hash) : old_hash[1];
  for (uint32_t i = 1; i < count; ++i) {
    const ElfW(Sym)& symbol = symbols[i];
    if (symbol.st_shndx != SHN_UNDEF && (symbol.st_info & 15) == STT_FUNC && std::strcmp(strings + symbol.st_name, wanted.symbol) == 0) {
      wanted.found = reinterpret_cast<void*>(info->dlpi_addr + symbol.st_value);
      return 1;
    }
  }
  return 0;
}

inline void* drivers_own(const char* library, const char* symbol) {
  Wanted wanted{library, symbol, nullptr};
  dl_iterate_phdr(look_into, &wanted);
  return wanted.found;
}

}  // namespace bench
