#include "scheduler/persisted_changes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/fnv.h"
#include "scheduler/persisted_file.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kBytesAtLeast = size_t{64} << 10;  // of lines, before all is written anew
constexpr size_t kBytesMost = size_t{8} << 20;      // read_persisted_file() reads twice that

std::string first_line(std::string_view whole) { return "follows " + fnv_1a_text(whole) + "\n"; }

}  // namespace

Result<std::optional<std::string>> PersistedChanges::read(std::vector<std::string>* lines) {
  lines->clear();
  Result<std::optional<std::string>> whole = read_persisted_file(file_);
  if (!whole || !whole->has_value()) return whole;
  const Result<std::optional<std::string>> changes = read_persisted_file(changes_);
  if (!changes) return changes.error();
  if (!changes->has_value()) return whole;
  const std::string& text = **changes;
  const std::string first = first_line(**whole);
  if (!text.starts_with(first)) {  // those of a file that is written over
    unlink(changes_.c_str());
    return whole;
  }
  for (size_t at = first.size(), end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines->push_back(text.substr(at, end - at));
  }
  return whole;
}

Result<void> PersistedChanges::write(const std::string& content) {
  end_.reset();
  follows_.clear();
  Result<void> written = write_persisted_file(file_, content);
  if (!written) return written;
  unlink(changes_.c_str());
  follows_ = first_line(content);
  whole_bytes_ = content.size();
  appended_bytes_ = 0;
  return {};
}

bool PersistedChanges::append(const std::string& lines) {
  if (follows_.empty()) return false;
  if (appended_bytes_ + lines.size() > std::clamp(2 * whole_bytes_, kBytesAtLeast, kBytesMost)) return false;
  if (appended_bytes_ == 0 ? !begin() : !is_there(end_)) return false;
  ssize_t wrote = -1;
  do {
    wrote = ::write(end_.get(), lines.data(), lines.size());
  } while (wrote < 0 && errno == EINTR);
  appended_bytes_ += lines.size();
  if (wrote == static_cast<ssize_t>(lines.size())) return true;
  follows_.clear();  // nothing may stand behind half a line
  return false;
}

bool PersistedChanges::begin() {
  if (!write_persisted_file(changes_, follows_)) return false;
  end_.reset(open(changes_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  return static_cast<bool>(end_);
}

}  // namespace nvshare::scheduler
