#include "kubernetes/dra/claim_record_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "kubernetes/files.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kRecordName[] = "/dra-claims.jsonl";
constexpr char kLockName[] = "/dra-claims.lock";
constexpr std::chrono::milliseconds kPauseForLock{5};

}  // namespace

Result<ClaimRecordFile> ClaimRecordFile::open(const std::string& folder) {
  if (auto ok = make_folder(folder); !ok) return ok.error();
  const std::string lock = folder + kLockName;
  FileDescriptor file(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return error_format("cannot open %.160s: %s", lock.c_str(), strerror(errno));
  return ClaimRecordFile(folder + kRecordName, std::move(file));
}

ClaimRecordFile::Held::~Held() {
  if (lock_ >= 0) flock(lock_, LOCK_UN);
}

Result<ClaimRecordFile::Held> ClaimRecordFile::hold(std::chrono::milliseconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return error_format("cannot lock %.160s: %s", path_.c_str(), strerror(errno));
    if (std::chrono::steady_clock::now() >= end) return error_format("another driver holds %.160s", path_.c_str());
    std::this_thread::sleep_for(kPauseForLock);
  }
  return Held(lock_.get());
}

std::optional<ClaimRecordFile::Identity> ClaimRecordFile::identity() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev, status.st_ino, status.st_size, int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
}

Result<std::optional<ClaimRecord>> ClaimRecordFile::read_if_changed() {
  const std::optional<Identity> now = identity();
  if (!now || now == known_) return std::optional<ClaimRecord>();
  Result<std::string> text = read_file(path_);
  if (!text) return text.error();
  Result<ClaimRecord> record = read_claim_record(*text);
  if (!record) return error_format("%.120s: %.120s", path_.c_str(), record.error().text);
  for (const std::string& why : record->left_out) spdlog::error("{}: {}; that claim is prepared anew when the kubelet asks", path_, why);
  if (!record->left_out.empty()) {
    // The record itself is written without them at the next change.
    if (auto ok = write_file_atomically(path_ + ".damaged", *text); !ok) spdlog::warn("{}", ok.error().text);
  }
  // A record that replaced it meanwhile is read at the next look.
  known_ = now;
  return std::optional(std::move(*record));
}

Result<void> ClaimRecordFile::write(const std::map<std::string, Claim>& claims) {
  if (auto ok = write_file_atomically(path_, claim_record(claims)); !ok) return ok;
  known_ = identity();
  return {};
}

}  // namespace nvshare::kubernetes::dra
