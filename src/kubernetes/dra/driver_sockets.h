// The sockets of this node's drivers: two drivers at a time each have their own, and one that was killed leaves its behind.
#pragma once

#include <string>

#include "base/result.h"

namespace nvshare::kubernetes::dra {

// An error: a program listens there.
Result<void> check_is_free(const std::string& socket);

// Removes sockets in `folder` on which nobody listens, of the names that begin and end so. The kubelet would go on calling them.
void remove_dead_sockets(const std::string& folder, const std::string& begin, const std::string& end);

}  // namespace nvshare::kubernetes::dra
