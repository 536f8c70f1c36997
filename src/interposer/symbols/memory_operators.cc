// operator new and delete for libnvshare.so alone, on malloc: the C++ library's throw, and would pull exception handling into the library.
// Hidden, so the program's own are untouched. Memory that cannot be had ends the process here, as it would in the program's own code;
// whoever can go on without uses new (std::nothrow).
#include <cstdlib>
#include <new>

void* operator new(std::size_t size) {
  void* memory = std::malloc(size != 0 ? size : 1);
  if (memory == nullptr) std::abort();
  return memory;
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size != 0 ? size : 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size != 0 ? size : 1); }
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  void* memory = nullptr;
  return posix_memalign(&memory, static_cast<std::size_t>(alignment), size != 0 ? size : 1) == 0 ? memory : nullptr;
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t& tag) noexcept {
  return operator new(size, alignment, tag);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  void* memory = operator new(size, alignment, std::nothrow);
  if (memory == nullptr) std::abort();
  return memory;
}
void* operator new[](std::size_t size, std::align_val_t alignment) { return operator new(size, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// What the standard containers' headers call where a library with exceptions would throw. Reached only by a bug.
namespace std {
const nothrow_t nothrow{};
[[noreturn]] void __throw_length_error(const char*) { std::abort(); }
[[noreturn]] void __throw_logic_error(const char*) { std::abort(); }
[[noreturn]] void __throw_out_of_range_fmt(const char*, ...) { std::abort(); }
[[noreturn]] void __throw_bad_alloc() { std::abort(); }
[[noreturn]] void __throw_bad_array_new_length() { std::abort(); }
[[noreturn]] void __throw_bad_function_call() { std::abort(); }
[[noreturn]] void __throw_bad_optional_access() { std::abort(); }
}  // namespace std

// For classes with pure virtual functions, and for objects with static storage (whose destructors never run).
extern "C" [[noreturn]] void __cxa_pure_virtual() { std::abort(); }
