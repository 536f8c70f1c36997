// The files that nvsharectl writes where its user says: -o FILE, --trace FILE, --bundle FILE. Somebody else may own the folder, and may
// have put a link there to a file that only we can write, or a file that only they can read. So:
//
// - A link is followed where its owner is us or root, as /dev/stdout is; another user's is refused.
// - A regular file is written whole under a name of its own beside it and renamed, so that nobody finds half of it, and what somebody
//   else made there is replaced, not written to. One of ours keeps its permissions. In a folder where we may make no file, one of ours is
//   written as it stands.
// - Where the name is that of a file which is open already, as /dev/stdout, that is written to from where it stands.
// - A pipe or a device is written to where its owner is us or root.
//
// In a folder that another user owns everything may be something else a moment later: what is there afterwards is theirs to say, but
// nothing outside of it is touched. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare::cli {

Result<void> write_output(const std::string& file, std::string_view text);
// Whether it could be written now; nothing is made.
Result<void> check_output(const std::string& file);
// Only where nothing of that name is, and for nobody else to read.
Result<void> write_new_output(const std::string& file, std::string_view text);

}  // namespace nvshare::cli
