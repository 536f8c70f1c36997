// Files on the host that containers use: the library, /etc/ld.so.preload. Written under another name and renamed, so that nobody ever
// sees half a file; never changed or removed once they are there, because containers that were given their paths may start again.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "kubernetes/grants.h"

namespace nvshare::kubernetes {

Result<std::string> read_file(const std::string& path);

// Makes or replaces `path`, mode 0644. Its folder is made if it is missing (one level).
Result<void> write_file_atomically(const std::string& path, std::string_view content);

// Puts `library` into <install_dir>/lib under a name made of `version` and its content, and the file for /etc/ld.so.preload beside it.
Result<InstalledFiles> install_files(const std::string& library, const std::string& install_dir, const std::string& version);

}  // namespace nvshare::kubernetes
