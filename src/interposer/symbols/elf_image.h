// Symbol lookup in a loaded ELF object by reading its tables: without dlsym, without locks, without memory, without dlerror's state.
//
// Works at any moment after the object was relocated, also before any constructor has run. The object must stay loaded meanwhile.
#pragma once

#include <link.h>

#include <cstdint>

namespace nvshare::interposer {

class ElfImage {
 public:
  explicit ElfImage(const link_map& object);

  // Where the function `name` is that this object defines; null if it defines none. Among several versions of it the default one wins;
  // with `versioned`, a definition without a version (another interposer's) does not count. An indirect function gives null.
  void* find_function(const char* name, bool versioned = false) const;
  // Its DT_SONAME; null: none.
  const char* soname() const { return soname_ != 0 && strings_ != nullptr ? strings_ + soname_ : nullptr; }
  // Where the caller's libraries are looked for by its own will: DT_RPATH or DT_RUNPATH; null: nowhere.
  const char* rpath() const { return rpath_ != 0 && strings_ != nullptr ? strings_ + rpath_ : nullptr; }
  const char* runpath() const { return runpath_ != 0 && strings_ != nullptr ? strings_ + runpath_ : nullptr; }
  // The name of the function that this object defines at `address`; null: none.
  const char* name_of_function(const void* address) const;

 private:
  using Symbol = ElfW(Sym);

  template <typename Visit>
  void for_each_candidate(const char* name, Visit visit) const;
  static bool is_function(const Symbol& symbol);
  bool is_named(const Symbol& symbol, const char* name) const;
  uint32_t symbol_count() const;

  uintptr_t base_;
  uintptr_t soname_ = 0, rpath_ = 0, runpath_ = 0;  // offsets of strings
  const Symbol* symbols_ = nullptr;
  const char* strings_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const uint32_t* sysv_hash_ = nullptr;
  const uint16_t* versions_ =
      nullptr;  // per symbol: 0 local, 1 none, else an index of the object's version definitions; top bit: not default
};

// The loaded objects in the order of the dynamic linker, which is that of symbol search. Only the front of the list (what was there when
// the process started) may be walked without a lock.
const link_map* first_loaded_object();

}  // namespace nvshare::interposer
