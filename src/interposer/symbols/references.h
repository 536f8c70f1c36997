// References of loaded objects to functions that have a hook, set to the hook: for objects whose own search does not find it first
// (RTLD_DEEPBIND, namespaces of their own).
//
// May take memory and locks of the dynamic linker. Nothing happens for objects that refer to none of these functions.
#pragma once

#include <link.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace nvshare::interposer {

// The objects of our own namespace, by where they lie.
std::vector<uintptr_t> loaded_objects();
// Sets the references of all objects of our namespace that are not in `before`.
void hook_references_of_new_objects(const std::vector<uintptr_t>& before);
// Sets the references of all objects of our namespace to functions that open a session of one of the driver's other libraries
// (unknown_calls.h): programs may be linked with these, and then look nothing up. Cheap while no object comes or goes.
void hook_references_to_sessions();
// The program is about to open a library: once it looks something up, which it mostly does at once, there may be new objects to look at.
// Nothing before the first look.
void object_opens();
// Calls nothing unless a library was opened.
inline void look_at_opened_objects();
// The same as hook_references_of_new_objects for all objects of the namespace that `object` is in.
void hook_references_in_namespace_of(const link_map& object);

// What a reference to `name`, which goes to `function` (null: not bound yet), is to be set to; null: it stays. `foreign`: of an object in
// another namespace, which would use a driver of its own.
void* hook_for_reference(const char* name, const void* function, bool foreign);

namespace detail {
inline constinit std::atomic<int> looks_due{0};
void look_once();
}  // namespace detail

inline void look_at_opened_objects() {
  if (detail::looks_due.load(std::memory_order_relaxed) > 0) [[unlikely]]
    detail::look_once();
}

}  // namespace nvshare::interposer
