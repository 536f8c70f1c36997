// Init containers: the kubelet starts them like others, but its list does not name them; its checkpoint does, by their pod's UID. Their
// devices are also those of the containers after them. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kubernetes/devices/device_allocations.h"
#include "kubernetes/pods/checkpoint.h"

namespace nvshare::kubernetes {

// The container of the checkpoint that holds exactly these devices of that resource. Its pod's name is taken from a listed container of the
// same pod; where there is none, it is the pod's UID, and the namespace is empty.
std::optional<HeldDevices> init_container_with(const Checkpoint& checkpoint, Resource resource, const std::vector<std::string>& ids,
                                               const std::vector<HeldDevices>& listed);

// Whether the checkpoint still has it: its pod has not ended, or not long ago.
bool is_there(const Checkpoint& checkpoint, const HeldDevices& init);

}  // namespace nvshare::kubernetes
