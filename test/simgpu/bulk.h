// Copies and fills of much memory. ThreadSanitizer looks at each 8 bytes of a memmove, some 50 MB a second, which would be most of what its
// tests take. It is shown the first, the last and one word of each 4 KiB instead: two accesses without an order are found where they have
// such a word in common, as all of 8 KiB and more do.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
#define SIMGPU_SHOWS_WORDS 1
extern "C" void __tsan_read8(void* address);
extern "C" void __tsan_write8(void* address);
#endif

namespace simgpu {

// Less is left to the sanitizer.
inline constexpr uint64_t kBulkBytes = 8u << 10;

#ifdef SIMGPU_SHOWS_WORDS
inline void show_access(uint64_t address, uint64_t bytes, bool write) {
  constexpr uint64_t kStep = 4u << 10;
  void (*const show)(void*) = write ? __tsan_write8 : __tsan_read8;
  show(reinterpret_cast<void*>(address & ~uint64_t{7}));
  for (uint64_t at = (address + kStep - 1) & ~(kStep - 1); at < address + bytes; at += kStep) show(reinterpret_cast<void*>(at));
  show(reinterpret_cast<void*>((address + bytes - 1) & ~uint64_t{7}));
}
#endif

inline void move_bytes(uint64_t to, uint64_t from, uint64_t bytes) {
#ifdef SIMGPU_SHOWS_WORDS
  if (bytes >= kBulkBytes && (to + bytes <= from || from + bytes <= to)) {
    show_access(from, bytes, false);
    show_access(to, bytes, true);
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
}

// The same where one side, the target if it goes `into` it, is a mapping of a file: through the file, so that no page of the mapping is
// touched. On a virtual machine the first touch of a page costs more than to copy it, and memory that is swapped in is often swapped out
// before anything else touches it.
inline bool move_through_file(int fd, uint64_t offset, bool into, uint64_t to, uint64_t from, uint64_t bytes) {
#ifdef SIMGPU_SHOWS_WORDS
  show_access(from, bytes, false);
  show_access(to, bytes, true);
#endif
  return syscall(into ? SYS_pwrite64 : SYS_pread64, fd, into ? from : to, bytes, offset) == static_cast<ssize_t>(bytes);
}

inline void fill_bytes(uint64_t to, unsigned char value, uint64_t bytes) {
#ifdef SIMGPU_SHOWS_WORDS
  if (bytes >= kBulkBytes) {
    show_access(to, bytes, true);
    asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
    return;
  }
#endif
  std::memset(reinterpret_cast<void*>(to), value, bytes);
}

}  // namespace simgpu
