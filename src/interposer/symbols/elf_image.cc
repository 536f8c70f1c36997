// Must not call into libc, not even for strings: a sanitizer's runtime looks up the real strcmp by dlsym, and so gets here.
#include "interposer/symbols/elf_image.h"

#include <elf.h>

namespace nvshare::interposer {
namespace {

constexpr uint16_t kVersionHidden = 0x8000;
constexpr uint16_t kVersionNone = 1;

bool same(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return *left == *right;
}

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

uint32_t sysv_hash_of(const char* name) {
  uint32_t hash = 0;
  for (; *name != '\0'; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const uint32_t high = hash & 0xf0000000u;
    hash = (hash ^ (high >> 24)) & ~high;
  }
  return hash;
}

}  // namespace

ElfImage::ElfImage(const link_map& object) : base_(object.l_addr) {
  if (object.l_ld == nullptr) return;
  // The dynamic linker relocates these addresses in place, except in objects whose dynamic section is read-only (the vDSO).
  const auto address = [this](const ElfW(Dyn) & entry) {
    const uintptr_t value = entry.d_un.d_ptr;
    return value < base_ ? base_ + value : value;
  };
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols_ = reinterpret_cast<const Symbol*>(address(*entry));
        break;
      case DT_STRTAB:
        strings_ = reinterpret_cast<const char*>(address(*entry));
        break;
      case DT_GNU_HASH:
        gnu_hash_ = reinterpret_cast<const uint32_t*>(address(*entry));
        break;
      case DT_HASH:
        sysv_hash_ = reinterpret_cast<const uint32_t*>(address(*entry));
        break;
      case DT_SONAME:
        soname_ = entry->d_un.d_val;
        break;
      case DT_RPATH:
        rpath_ = entry->d_un.d_val;
        break;
      case DT_RUNPATH:
        runpath_ = entry->d_un.d_val;
        break;
      case DT_VERSYM:
        versions_ = reinterpret_cast<const uint16_t*>(address(*entry));
        break;
      default:
        break;  // an open set: other tags concern others
    }
  }
}

bool ElfImage::is_function(const Symbol& symbol) {
  return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC;
}

bool ElfImage::is_named(const Symbol& symbol, const char* name) const {
  return is_function(symbol) && same(strings_ + symbol.st_name, name);
}

// Calls visit(symbol index) for every definition of `name` until it returns false.
template <typename Visit>
void ElfImage::for_each_candidate(const char* name, Visit visit) const {
  if (gnu_hash_ != nullptr) {
    // Layout: bucket count, first hashed symbol, Bloom words, Bloom shift; Bloom filter; buckets; one hash per symbol, low bit: chain ends.
    const uint32_t bucket_count = gnu_hash_[0];
    const uint32_t first = gnu_hash_[1];
    const uint32_t bloom_words = gnu_hash_[2];
    const uint32_t* buckets = gnu_hash_ + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* chain = buckets + bucket_count;
    if (bucket_count == 0) return;
    const uint32_t hash = gnu_hash_of(name);
    uint32_t index = buckets[hash % bucket_count];
    if (index < first) return;
    for (;; ++index) {
      const uint32_t found = chain[index - first];
      if ((found | 1) == (hash | 1) && is_named(symbols_[index], name) && !visit(index)) return;
      if ((found & 1) != 0) return;
    }
  }
  if (sysv_hash_ != nullptr) {
    const uint32_t bucket_count = sysv_hash_[0];
    const uint32_t* buckets = sysv_hash_ + 2;
    const uint32_t* chain = buckets + bucket_count;
    if (bucket_count == 0) return;
    for (uint32_t index = buckets[sysv_hash_of(name) % bucket_count]; index != STN_UNDEF; index = chain[index]) {
      if (is_named(symbols_[index], name) && !visit(index)) return;
    }
  }
}

void* ElfImage::find_function(const char* name, bool versioned) const {
  if (symbols_ == nullptr || strings_ == nullptr) return nullptr;
  uintptr_t found = 0;
  for_each_candidate(name, [&](uint32_t index) {
    const uint16_t version = versions_ != nullptr ? versions_[index] : kVersionNone;
    if (versioned && (version & ~kVersionHidden) <= kVersionNone) return true;
    found = base_ + symbols_[index].st_value;
    return (version & kVersionHidden) != 0;
  });
  return reinterpret_cast<void*>(found);
}

// The GNU table does not say it: the last symbol is the one that ends the chain of the bucket that begins last.
uint32_t ElfImage::symbol_count() const {
  if (sysv_hash_ != nullptr) return sysv_hash_[1];
  if (gnu_hash_ == nullptr) return 0;
  const uint32_t bucket_count = gnu_hash_[0];
  const uint32_t first = gnu_hash_[1];
  const uint32_t* buckets = gnu_hash_ + 4 + gnu_hash_[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = buckets + bucket_count;
  uint32_t last = 0;
  for (uint32_t bucket = 0; bucket < bucket_count; ++bucket) {
    if (buckets[bucket] > last) last = buckets[bucket];
  }
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

const char* ElfImage::name_of_function(const void* address) const {
  if (symbols_ == nullptr || strings_ == nullptr) return nullptr;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - base_;
  const uint32_t count = symbol_count();
  for (uint32_t index = 0; index < count; ++index) {
    if (symbols_[index].st_value == offset && is_function(symbols_[index])) return strings_ + symbols_[index].st_name;
  }
  return nullptr;
}

const link_map* first_loaded_object() { return _r_debug.r_map; }

}  // namespace nvshare::interposer
