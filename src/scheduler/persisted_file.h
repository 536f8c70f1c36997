// Small files in the runtime folder in which a scheduler leaves its successor what that is to know. Whoever can write there could hand out
// limits, so a file that is not ours is refused.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

// Nothing: there is no such file. An error, which names the file: it is another user's, writable for others, no plain file, or larger than
// anything that we write.
Result<std::optional<std::string>> read_persisted_file(const std::string& file);

// As a whole or not at all: beside it first, then renamed.
Result<void> write_persisted_file(const std::string& file, const std::string& content);

// It is open, and can still be found by a name.
bool is_there(const FileDescriptor& file);

}  // namespace nvshare::scheduler
