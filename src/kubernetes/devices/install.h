// Files on the host that containers use: the library, /etc/ld.so.preload. Written under another name and renamed, so that no container ever
// sees half a file; never changed or removed once they are there, because containers that were given their paths may start again.
#pragma once

#include <string>

#include "base/result.h"
#include "kubernetes/devices/container_edits.h"

namespace nvshare::kubernetes {

// Puts `library` into <install_dir>/lib under a name made of `version` and its content, and the file for /etc/ld.so.preload beside it.
Result<InstalledFiles> install_files(const std::string& library, const std::string& install_dir, const std::string& version);

}  // namespace nvshare::kubernetes
