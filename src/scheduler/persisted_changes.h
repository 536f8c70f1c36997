// A kept file, and what has changed since it was written, in lines appended to FILE.changes: a change of one entry among thousands costs
// its own line, not the whole file. Lines count only behind the very file that they were written after. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

class PersistedChanges {
 public:
  explicit PersistedChanges(std::string file) : file_(std::move(file)), changes_(file_ + ".changes") {}

  // As read_persisted_file(); then `lines` are the whole lines appended to it since. A last line that was cut off is none: nobody was told
  // that it was kept.
  Result<std::optional<std::string>> read(std::vector<std::string>* lines);

  // All anew: nothing has changed since.
  Result<void> write(const std::string& content);
  // False: it has to be written as a whole, as nothing has been yet, its lines have become longer than twice itself, or one cannot be
  // written. `lines`: each with its newline.
  bool append(const std::string& lines);
  bool is_behind() const { return appended_bytes_ > 0; }  // lines were appended since the whole was written

  const std::string& file() const { return file_; }

 private:
  bool begin();

  const std::string file_, changes_;
  std::string follows_;  // the first line of changes; empty: nothing was written yet
  size_t whole_bytes_ = 0, appended_bytes_ = 0;
  FileDescriptor end_;  // of changes_, to append to
};

}  // namespace nvshare::scheduler
