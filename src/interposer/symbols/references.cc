#include "interposer/symbols/references.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "interposer/log.h"
#include "interposer/symbols/dlsym.h"
#include "interposer/symbols/elf_image.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/symbols/real_nvml.h"
#include "interposer/symbols/unknown_calls.h"

namespace nvshare::interposer {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobalData = R_X86_64_GLOB_DAT, kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobalData = R_AARCH64_GLOB_DAT, kAbsolute = R_AARCH64_ABS64;
#endif

// One loaded object, read from its program headers.
class Object {
 public:
  Object(uintptr_t base, const ElfW(Phdr) * headers, size_t count) : base_(base) {
    for (size_t i = 0; i < count; ++i) {
      const ElfW(Phdr)& header = headers[i];
      const uintptr_t begin = base + header.p_vaddr;
      if (header.p_type == PT_LOAD) {
        begin_ = std::min(begin_, begin);
        end_ = std::max(end_, begin + header.p_memsz);
      } else if (header.p_type == PT_DYNAMIC) {
        read(reinterpret_cast<const ElfW(Dyn)*>(begin));
      } else if (header.p_type == PT_GNU_RELRO) {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        sealed_begin_ = begin / page * page;
        sealed_end_ = (begin + header.p_memsz) / page * page;
      }
    }
  }

  // find(name, function) as hook_for_reference.
  template <typename Find>
  void hook_references(Find find) const {
    if (symbols_ == nullptr || strings_ == nullptr || is_of_libc()) return;
    hook(jumps_, jumps_bytes_, find);
    hook(others_, others_bytes_, find);
  }

 private:
  void read(const ElfW(Dyn) * entries) {
    const auto address = [this](const ElfW(Dyn) & entry) {
      const uintptr_t value = entry.d_un.d_ptr;
      return value < base_ ? base_ + value : value;
    };
    uintptr_t name = 0;
    for (const ElfW(Dyn)* entry = entries; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols_ = reinterpret_cast<const ElfW(Sym)*>(address(*entry));
          break;
        case DT_STRTAB:
          strings_ = reinterpret_cast<const char*>(address(*entry));
          break;
        case DT_JMPREL:
          jumps_ = reinterpret_cast<const ElfW(Rela)*>(address(*entry));
          break;
        case DT_PLTRELSZ:
          jumps_bytes_ = entry->d_un.d_val;
          break;
        case DT_RELA:
          others_ = reinterpret_cast<const ElfW(Rela)*>(address(*entry));
          break;
        case DT_RELASZ:
          others_bytes_ = entry->d_un.d_val;
          break;
        case DT_SONAME:
          name = entry->d_un.d_val;
          break;
        default:
          break;  // an open set
      }
    }
    if (strings_ != nullptr && name != 0) name_ = strings_ + name;
  }

  // Their own use of these functions is not the program's.
  bool is_of_libc() const {
    for (const char* part : {"libc.so.", "libdl.so.", "libpthread.so.", "ld-linux", "libnvshare.so", "libcuda.so."}) {
      if (name_ != nullptr && std::strncmp(name_, part, std::strlen(part)) == 0) return true;
    }
    return false;
  }

  template <typename Find>
  void hook(const ElfW(Rela) * references, size_t bytes, Find find) const {
    for (size_t i = 0; references != nullptr && i < bytes / sizeof *references; ++i) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(references[i].r_info));
      if (type != kJumpSlot && type != kGlobalData && type != kAbsolute) continue;
      if (type == kAbsolute && references[i].r_addend != 0) continue;
      const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(references[i].r_info)];
      if (symbol.st_shndx != SHN_UNDEF) continue;
      auto* slot = reinterpret_cast<void**>(base_ + references[i].r_offset);
      const auto bound = reinterpret_cast<uintptr_t>(*slot);
      const bool waits = type == kJumpSlot && bound >= begin_ && bound < end_;  // for the first call, to be bound then
      void* const hook = bound == 0 ? nullptr : find(strings_ + symbol.st_name, waits ? nullptr : *slot);
      if (hook != nullptr && hook != *slot) set(slot, hook);
    }
  }

  void set(void** slot, void* function) const {
    const auto at = reinterpret_cast<uintptr_t>(slot);
    const bool sealed = at >= sealed_begin_ && at < sealed_end_;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* const begin = reinterpret_cast<void*>(at / page * page);
    if (sealed && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) {
      log(LogLevel::kWarning, "a library's references to the GPU's driver cannot be followed: what it does there is not shared");
      return;
    }
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    if (sealed) mprotect(begin, page, PROT_READ);
  }

  uintptr_t base_;
  uintptr_t begin_ = UINTPTR_MAX, end_ = 0;
  uintptr_t sealed_begin_ = 0, sealed_end_ = 0;  // read-only since it was relocated
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const char* name_ = nullptr;
  const ElfW(Rela) * jumps_ = nullptr;
  const ElfW(Rela) * others_ = nullptr;
  size_t jumps_bytes_ = 0, others_bytes_ = 0;
};

auto finder(bool foreign) {
  return [foreign](const char* name, void* function) { return hook_for_reference(name, function, foreign); };
}

// What was loaded at the last look for sessions: changes with each object that comes or goes.
constinit std::atomic<uint64_t> objects_looked_at{0};

// Where loaded objects define the functions that open sessions.
struct SessionFunctions {
  void* at[kSessionNames] = {};
  bool any = false;
  uint64_t objects = 0;

  void look_into(const dl_phdr_info& info) {
    link_map object{};
    object.l_addr = info.dlpi_addr;
    for (size_t i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) object.l_ld = reinterpret_cast<ElfW(Dyn)*>(info.dlpi_addr + header.p_vaddr);
    }
    if (object.l_ld == nullptr) return;
    const ElfImage image(object);
    for (size_t i = 0; i < kSessionNames; ++i) {
      if (at[i] == nullptr) at[i] = image.find_function(session_name(i));
      any = any || at[i] != nullptr;
    }
  }

  // A name of theirs has few beginnings; there are many references.
  void* stub_for(const char* name, void* function) const {
    if (session_opened_by(name) == nullptr) return nullptr;
    for (size_t i = 0; i < kSessionNames; ++i) {
      if (std::strcmp(name, session_name(i)) == 0) return guard_session(function != nullptr ? function : at[i], session_name(i));
    }
    return nullptr;
  }
};

}  // namespace

// All with the linker's lock held, so that no object goes meanwhile; stubs are handed out without locks.
void hook_references_to_sessions() {
  SessionFunctions functions;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        auto& found = *static_cast<SessionFunctions*>(into);
        found.objects = info->dlpi_adds + info->dlpi_subs;
        if (found.objects == objects_looked_at.load(std::memory_order_relaxed)) return 1;
        found.look_into(*info);
        return 0;
      },
      &functions);
  if (objects_looked_at.exchange(functions.objects, std::memory_order_relaxed) == functions.objects || !functions.any) return;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* from) {
        const auto& known = *static_cast<const SessionFunctions*>(from);
        Object(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum).hook_references([&](const char* name, void* function) {
          return known.stub_for(name, function);
        });
        return 0;
      },
      &functions);
}

// Another thread may look something up before the library is there.
constexpr int kLooksForAnOpening = 16;

void object_opens() {
  if (objects_looked_at.load(std::memory_order_relaxed) == 0) return;
  detail::looks_due.store(kLooksForAnOpening, std::memory_order_relaxed);
}

void detail::look_once() {
  const uint64_t before = objects_looked_at.load(std::memory_order_relaxed);
  if (looks_due.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
  hook_references_to_sessions();
  if (objects_looked_at.load(std::memory_order_relaxed) != before) looks_due.store(0, std::memory_order_relaxed);
}

std::vector<uintptr_t> loaded_objects() {
  std::vector<uintptr_t> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        static_cast<std::vector<uintptr_t>*>(into)->push_back(reinterpret_cast<uintptr_t>(info->dlpi_phdr));
        return 0;
      },
      &found);
  std::sort(found.begin(), found.end());
  return found;
}

void hook_references_of_new_objects(const std::vector<uintptr_t>& before) {
  std::vector<Object> fresh;
  struct Search {
    const std::vector<uintptr_t>& before;
    std::vector<Object>& fresh;
  } search{before, fresh};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* const wanted = static_cast<Search*>(data);
        if (std::binary_search(wanted->before.begin(), wanted->before.end(), reinterpret_cast<uintptr_t>(info->dlpi_phdr))) return 0;
        wanted->fresh.emplace_back(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum);
        return 0;
      },
      &search);
  // The caller has just opened them, so they stay. Outside of the linker's lock: a hook is looked for by opening the driver.
  for (const Object& object : fresh) object.hook_references(finder(false));
}

void hook_references_in_namespace_of(const link_map& object) {
  const link_map* first = &object;
  while (first->l_prev != nullptr) first = first->l_prev;
  for (const link_map* each = first; each != nullptr; each = each->l_next) {
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(each->l_addr);
    // The kernel's and an executable's own are not there; libraries begin with their header.
    if (header == nullptr || each->l_name == nullptr || each->l_name[0] == '\0') continue;
    if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) continue;
    Object(each->l_addr, reinterpret_cast<const ElfW(Phdr)*>(each->l_addr + header->e_phoff), header->e_phnum)
        .hook_references(finder(true));
  }
}

void* hook_for_reference(const char* name, const void* function, bool foreign) {
  if (void* lookup = own_lookup(name)) return lookup;
  if (function != nullptr && session_opened_by(name) != nullptr) return guard_session(const_cast<void*>(function), name);
  if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
    if (foreign) return function == nullptr || driver_owns(function, name) ? one_drivers(name) : nullptr;
    const size_t slot = slot_of_name(name);
    if (slot != kNoSlot) return function == nullptr || driver_owns(function, name) ? hook_of_slot(slot) : nullptr;
    if (!is_risky_name(name) || is_known_name(name) || !driver_is_present()) return nullptr;
    void* const real = driver_export(name);
    const char* const exported = real != nullptr ? driver_export_at(real) : nullptr;
    return exported != nullptr && (function == nullptr || driver_owns(function, name)) ? guard_unknown(real, exported) : nullptr;
  }
  if (name[0] == 'n' && name[1] == 'v') {
    const size_t slot = nvml_slot_of_name(name);
    if (slot != kNoSlot) return nvml_hook(slot);
  }
  return nullptr;
}

}  // namespace nvshare::interposer
