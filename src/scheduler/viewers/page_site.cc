#include "scheduler/viewers/page_site.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/parse.h"
#include "protocol/admin.h"
#include "scheduler/http_address.h"
#include "scheduler/viewers/page_files.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kReportLivesNs = 333'000'000;
constexpr int64_t kWholeEveryNs = 3'000'000'000, kWholeLateNs = 6'000'000'000;
constexpr int kNewsForLate = 2;  // they have the amounts of what has changed, too
constexpr int64_t kBusyPauseNs = 1'000'000'000;
constexpr size_t kGpusMax = 64;  // that a question names
constexpr char kReportPath[] = "/status.json", kFeedPath[] = "/status.jsonl", kPastPath[] = "/past.jsonl";
constexpr char kFeedType[] = "application/x-ndjson";
constexpr size_t kTokenMin = 16, kTokenMax = 256;

constexpr char kHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n";

// Takes as long for a wrong token as for another one of that length.
bool are_equal(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ = static_cast<unsigned char>(differ | (a[i] ^ b[i]));
  return differ == 0;
}

// Of "changes=17&gpus=GPU-a,GPU-b": of `name` "gpus" what follows its '='; nullopt: it is not there.
std::optional<std::string_view> value_of(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view word = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(word.size() + 1, query.size()));
    if (word.size() > name.size() && word.substr(0, name.size()) == name && word[name.size()] == '=') return word.substr(name.size() + 1);
  }
  return std::nullopt;
}

// Nullopt: the query says no such number.
std::optional<uint64_t> changes_of(const std::string& query) {
  const std::optional<std::string_view> text = value_of(query, "changes");
  if (!text) return std::nullopt;
  const Result<int64_t> number = parse_integer(std::string(*text), 0, INT64_MAX);
  return number ? std::optional(static_cast<uint64_t>(*number)) : std::nullopt;
}

// Nullopt: it names none in particular. A list that is longer than any node's, or has a name of nothing, counts as none: it is no page's.
std::optional<std::vector<std::string_view>> gpus_of(const std::string& query) {
  std::optional<std::string_view> list = value_of(query, "gpus");
  if (!list) return std::nullopt;
  std::vector<std::string_view> gpus;
  while (!list->empty()) {
    const std::string_view gpu = list->substr(0, list->find(','));
    if (gpu.empty() || gpus.size() == kGpusMax) return std::nullopt;
    list->remove_prefix(std::min(gpu.size() + 1, list->size()));
    gpus.push_back(gpu);
  }
  return gpus;
}

// Reports for all who ask in one round of the server: where the scheduler is too busy for one, nobody else waits for it another second.
class RoundDesk {
 public:
  explicit RoundDesk(std::shared_ptr<ReportDesk> desk) : desk_(std::move(desk)) {}

  const ReportDesk& changes() const { return *desk_; }
  ReportDesk::Report report(uint64_t changes_min) {
    ReportDesk::Report now = is_too_busy_ ? nullptr : desk_->fresh(kReportLivesNs, changes_min);
    is_too_busy_ = !now;
    return now;
  }
  void round_is_over() { is_too_busy_ = false; }

 private:
  const std::shared_ptr<ReportDesk> desk_;
  bool is_too_busy_ = false;
};

HttpResponse json(const char* status, std::string text) {
  HttpResponse response = plain_response(status, std::move(text));
  response.type = "application/json";
  return response;
}

HttpResponse too_busy() {
  return json("503 Service Unavailable", protocol::admin::encode_error("the scheduler was too busy for a second"));
}

// /status.jsonl
class PageFeed final : public HttpFeed {
 public:
  PageFeed(RoundDesk& desk, const std::string& query, int64_t lives_ns)
      : desk_(desk), query_(query), gpus_(gpus_of(query_)), known_(changes_of(query_).value_or(0)), ends_at_(monotonic_ns() + lives_ns) {
    if (known_ != 0) whole_at_ = monotonic_ns() + kWholeEveryNs;
  }

  std::shared_ptr<const std::string> next() override {
    const int64_t now = monotonic_ns();
    if (now < not_before_) return nullptr;
    is_owed_ = false;
    const bool whole = now >= whole_at_, has_news = known_ < latest();
    if (!whole && !has_news) return nullptr;
    const ReportDesk::Report report = desk_.report(has_news ? desk_.changes().changes() : 0);
    if (!report) {
      not_before_ = monotonic_ns() + kBusyPauseNs;  // the wait was long
      is_owed_ = true;
      return nullptr;
    }
    const uint64_t since = whole || known_ >= report->report().changes ? 0 : known_;
    known_ = report->report().changes;
    news_ = since == 0 ? 0 : news_ + 1;
    if (since == 0) whole_at_ = now + kWholeEveryNs;
    if (news_ == kNewsForLate) whole_at_ += kWholeLateNs - kWholeEveryNs;
    return report->text(since, true);
  }
  int64_t due_at() const override { return std::min(is_owed_ ? not_before_ : std::max(whole_at_, not_before_), ends_at_); }
  bool is_over() const override { return monotonic_ns() >= ends_at_; }
  HttpResponse once() override {
    known_ = 0;
    whole_at_ = 0;
    HttpResponse response;
    response.type = kFeedType;
    response.body = next();
    return response.body ? std::move(response) : too_busy();
  }

 private:
  // The latest change that it is about: on its GPUs, else on any.
  uint64_t latest() const { return gpus_ ? desk_.changes().changes_on(*gpus_) : desk_.changes().changes(); }

  RoundDesk& desk_;
  const std::string query_;
  const std::optional<std::vector<std::string_view>> gpus_;  // of the query
  uint64_t known_;
  const int64_t ends_at_;
  int64_t whole_at_ = 0, not_before_ = 0;
  bool is_owed_ = false;  // there was something to say, but no report
  int news_ = 0;          // since all of it
};

class PageSite final : public HttpSite {
 public:
  PageSite(std::shared_ptr<ReportDesk> desk, std::shared_ptr<PastDesk> past, std::string token, int64_t feed_lives_ns)
      : token_(std::move(token)), feed_lives_ns_(feed_lives_ns), desk_(std::move(desk)), past_(std::move(past)) {
    const auto add = [&](const char* path, const char* type, const char* text) {
      files_.push_back({path, type, std::make_shared<const std::string>(text)});
    };
    add("/", "text/html; charset=utf-8", kPageHtml);
    add("/page.css", "text/css; charset=utf-8", kPageCss);
    add("/figures.js", "text/javascript; charset=utf-8", kPageFigures);
    add("/tables.js", "text/javascript; charset=utf-8", kPageTables);
    add("/past.js", "text/javascript; charset=utf-8", kPagePast);
    add("/page.js", "text/javascript; charset=utf-8", kPageScript);
  }

  std::optional<HttpResponse> answer(const HttpRequest& request) override {
    const auto file = std::find_if(files_.begin(), files_.end(), [&](const File& each) { return each.path == request.path; });
    const bool is_of_reports = request.path == kReportPath || request.path == kFeedPath || request.path == kPastPath;
    if (file == files_.end() && !is_of_reports) return std::nullopt;
    HttpResponse response = token_.empty() && !is_named_by_nobody(request.host)
                                ? plain_response("403 Forbidden", "ask by IP address, or as localhost\n")
                            : file != files_.end() ? HttpResponse{"200 OK", file->type, "", file->text}
                                                   : report(request);
    response.headers += kHeaders;
    return response;
  }
  void round_is_over() override { desk_.round_is_over(); }
  std::string where() const override { return "the page is at /"; }

 private:
  struct File {
    std::string path;
    const char* type;
    std::shared_ptr<const std::string> text;
  };

  bool is_allowed(const HttpRequest& request) const {
    return token_.empty() ? is_named_by_nobody(request.host) : are_equal(request.authorization, "Bearer " + token_);
  }

  HttpResponse report(const HttpRequest& request) {
    if (!is_allowed(request)) {
      HttpResponse refusal = json("401 Unauthorized", protocol::admin::encode_error("the page's token is missing or wrong"));
      refusal.headers = "WWW-Authenticate: Bearer\r\n";
      return refusal;
    }
    HttpResponse response;
    if (request.path == kFeedPath) {
      response.type = kFeedType;
      response.headers = "X-Accel-Buffering: no\r\n";  // a proxy that collects parts shows them late
      response.feed = std::make_unique<PageFeed>(desk_, request.query, feed_lives_ns_);
      return response;
    }
    if (request.path == kPastPath) {
      response.type = kFeedType;
      response.body = past_->lines();
      return response.body ? std::move(response) : too_busy();
    }
    const ReportDesk::Report now = desk_.report(0);
    if (!now) return too_busy();
    response.type = "application/json";
    response.body = now->text(0);
    return response;
  }

  const std::string token_;
  const int64_t feed_lives_ns_;
  std::vector<File> files_;
  RoundDesk desk_;
  const std::shared_ptr<PastDesk> past_;
};

}  // namespace

std::unique_ptr<HttpSite> make_page_site(std::shared_ptr<ReportDesk> desk, std::shared_ptr<PastDesk> past, std::string token,
                                         int64_t feed_lives_ns) {
  return std::make_unique<PageSite>(std::move(desk), std::move(past), std::move(token), feed_lives_ns);
}

Result<std::string> read_page_token(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0) return error_format("page_token_file %.200s: %s", path.c_str(), std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return error_format("page_token_file %.200s is no file", path.c_str());
  if ((about.st_uid != 0 && about.st_uid != geteuid()) || (about.st_mode & 077) != 0) {
    return error_format("page_token_file %.200s: others can read or change it; it must be root's or the scheduler's user's, mode 0600",
                        path.c_str());
  }
  char text[kTokenMax + 2];  // one more than may be there, and the newline
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got < 0) return error_format("page_token_file %.200s: %s", path.c_str(), std::strerror(errno));
  std::string token(text, static_cast<size_t>(got));
  if (!token.empty() && token.back() == '\n') token.pop_back();
  const bool is_printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; });
  if (token.size() < kTokenMin || token.size() > kTokenMax || !is_printable) {
    return error_format("page_token_file %.200s: no token; accepted: one line of %zu to %zu printable characters without blanks",
                        path.c_str(), kTokenMin, kTokenMax);
  }
  return token;
}

}  // namespace nvshare::scheduler
