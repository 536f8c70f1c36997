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

 private:
  using Symbol = ElfW(Sym);

  template <typename Visit>
  void for_each_candidate(const char* name, Visit visit) const;
  bool is_named(const Symbol& symbol, const char* name) const;

  uintptr_t base_;
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
