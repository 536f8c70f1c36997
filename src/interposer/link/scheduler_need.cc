#include "interposer/link/scheduler_need.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string_view>

#include "base/fd.h"
#include "interposer/log.h"
#include "interposer/variable.h"

namespace nvshare::interposer {
namespace {

constexpr char kPreload[] = "/etc/ld.so.preload";
constexpr char kClientConf[] = "/etc/nvshare/client.conf";
// A value that is none of these does not do away with the requirement.
constexpr ChoiceVariable<SchedulerNeed, 3> kRequired = {
    .name = "NVSHARE_REQUIRE_SCHEDULER",
    .choices = {{"0", SchedulerNeed::kNone}, {"wait", SchedulerNeed::kWaits}, {"1", SchedulerNeed::kRefuses}},
    .unset = SchedulerNeed::kNone,
    .wrong = SchedulerNeed::kRefuses,
    .then = "A scheduler is required",
    .meaning = "what a program does where no scheduler answers: it runs unshared, waits, or gets no GPU"};

// The file's first bytes as a text; false: it cannot be read.
template <size_t kSize>
bool read_text(const char* path, char (&text)[kSize]) {
  FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? read(file.get(), text, kSize - 1) : -1;
  text[length > 0 ? length : 0] = '\0';
  return length >= 0;
}

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

bool preloaded_by_system() {
  char text[4096];
  return read_text(kPreload, text) && strstr(text, "libnvshare") != nullptr;
}

bool read_client_conf(const char* text, SchedulerNeed* need) {
  bool good = true;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || trimmed(line.substr(0, equals)) != "require_scheduler") {
      good = false;
    } else {
      const auto* choice = kRequired.find(trimmed(line.substr(equals + 1)));
      *need = choice != nullptr ? choice->value : SchedulerNeed::kWaits;
      good = choice != nullptr && good;
    }
  }
  return good;
}

SchedulerNeeded scheduler_needed() {
  SchedulerNeeded needed;
  const auto ask = [&](SchedulerNeed need, const char* because) {
    if (need > needed.need) needed = {need, because};
  };
  if (preloaded_by_system()) ask(SchedulerNeed::kWaits, "/etc/ld.so.preload has this library");
  char text[4096];
  if (read_text(kClientConf, text)) {
    SchedulerNeed need = SchedulerNeed::kNone;
    if (!read_client_conf(text, &need)) {
      log(LogLevel::kWarning, "%s has something that is not understood; accepted: require_scheduler = 0, wait or 1", kClientConf);
    }
    ask(need, "/etc/nvshare/client.conf says so");
  }
  const SchedulerNeed wish = value_of(kRequired);
  ask(wish, wish == SchedulerNeed::kRefuses ? "NVSHARE_REQUIRE_SCHEDULER=1" : "NVSHARE_REQUIRE_SCHEDULER=wait");
  return needed;
}

}  // namespace nvshare::interposer
