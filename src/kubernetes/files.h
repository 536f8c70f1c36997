// Files on the host: read whole, or replaced so that readers never see half of one. Errors name the path. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare::kubernetes {

Result<std::string> read_file(const std::string& path);

// One level, mode 0755; a folder that is there is left as it is.
Result<void> make_folder(const std::string& path);

// Makes or replaces `path`, mode 0644. Its folder is made if it is missing (one level).
Result<void> write_file_atomically(const std::string& path, std::string_view content);

}  // namespace nvshare::kubernetes
