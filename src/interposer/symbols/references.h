// References of loaded objects to functions that have a hook, set to the hook: for objects whose own search does not find it first
// (RTLD_DEEPBIND, namespaces of their own).
//
// May take memory and locks of the dynamic linker. Nothing happens for objects that refer to none of these functions.
#pragma once

#include <link.h>

#include <cstdint>
#include <vector>

namespace nvshare::interposer {

// The objects of our own namespace, by where they lie.
std::vector<uintptr_t> loaded_objects();
// Sets the references of all objects of our namespace that are not in `before`.
void hook_references_of_new_objects(const std::vector<uintptr_t>& before);
// The same for all objects of the namespace that `object` is in.
void hook_references_in_namespace_of(const link_map& object);

// What a reference to `name`, which goes to `function` (null: not bound yet), is to be set to; null: it stays. `foreign`: of an object in
// another namespace, which would use a driver of its own.
void* hook_for_reference(const char* name, const void* function, bool foreign);

}  // namespace nvshare::interposer
