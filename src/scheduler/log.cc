#include "scheduler/log.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

namespace nvshare::scheduler {

bool LineRate::allows(int64_t now_ns) {
  if (then_ns_ != 0 && now_ns > then_ns_) left_ = std::min(burst_, left_ + static_cast<double>(now_ns - then_ns_) / 1e9 * each_second_);
  then_ns_ = now_ns;
  if (left_ < 1) {
    ++held_back_;
    return false;
  }
  left_ -= 1;
  return true;
}

UnwaitingSink::UnwaitingSink(int fd) : fd_(fd) {
  struct stat about {};
  is_socket_ = fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

// All of it or nothing. The descriptor may be shared with other programs, so it is not made non-blocking: a pipe or terminal that can be
// written to takes a line of this length without waiting.
bool UnwaitingSink::write(const char* text, size_t bytes) const {
  if (is_socket_) return send(fd_, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  pollfd polled{fd_, POLLOUT, 0};
  if (poll(&polled, 1, 0) <= 0 || (polled.revents & POLLOUT) == 0) return false;
  ssize_t written = -1;
  do {
    written = ::write(fd_, text, bytes);
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(bytes);
}

void UnwaitingSink::sink_it_(const spdlog::details::log_msg& message) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const bool is_bounded = message.level >= spdlog::level::info;
  if (is_bounded && !rate_.allows(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count())) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) {
    spdlog::memory_buf_t told;
    const std::string text = fmt::format("{} lines were dropped: nobody read the log, or they came too fast", dropped_);
    formatter_->format({message.time, message.source, message.logger_name, spdlog::level::warn, text}, told);
    if (!write(told.data(), told.size())) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
  }
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (line.size() > kLineBytesMax) {
    line.resize(kLineBytesMax);
    line[kLineBytesMax - 1] = '\n';
  }
  if (!write(line.data(), line.size())) ++dropped_;
}

void log_to_standard_error() {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("nvshare-scheduler", std::make_shared<UnwaitingSink>(STDERR_FILENO)));
}

bool TenantLines::allows(const std::string& tenant, int64_t now_ns, std::string* more) {
  if (tenants_.size() > kTenantsMax) tenants_.clear();
  LineRate& rate = tenants_.try_emplace(tenant, kTenantAtOnce, kTenantEachSecond).first->second;
  if (!rate.allows(now_ns) || !all_.allows(now_ns)) return false;
  const uint64_t of_tenant = rate.take_held_back();
  const uint64_t of_others = all_.take_held_back();
  if (of_tenant > 0) *more += fmt::format(" ({} such lines of this tenant or user were left out)", of_tenant);
  if (of_others > 0) *more += fmt::format(" ({} such lines of several tenants were left out)", of_others);
  return true;
}

}  // namespace nvshare::scheduler
