#include "scheduler/viewers/past_desk.h"

#include <utility>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kPatienceNs = 1'000'000'000, kApartNs = 1'000'000'000;

}  // namespace

PastDesk::Text PastDesk::lines() {
  Lock lock(asking_);
  if (text_ && monotonic_ns() - made_at_ < kApartNs) return text_;
  std::string text;
  TraceRing::Part part{{}, 0, true};
  for (size_t parts = 0; part.more; ++parts) {
    std::optional<TraceRing::Copied> copied;
    if (!ask(part.next, copied)) return nullptr;
    if (!copied || parts == kPartsMax || (parts > 0 && copied->begins)) {  // too much to tell, or more than can be followed
      text.clear();
      break;
    }
    part = TraceRing::written(*copied);
    for (const std::string& line : part.lines) text.append(line) += '\n';
  }
  text_ = std::make_shared<const std::string>(std::move(text));
  made_at_ = monotonic_ns();
  return text_;
}

bool PastDesk::ask(uint64_t after, std::optional<TraceRing::Copied>& copied) {
  const auto wish = std::make_shared<Answer>();
  Lock lock(mutex_);
  if (!read_) return false;
  loop_.post([desk = shared_from_this(), after, wish] { desk->answer(after, wish); });
  changed_.wait_for(mutex_, kPatienceNs, [&]() REQUIRES(mutex_) { return !read_ || wish->is_there; });
  copied = std::move(wish->copied);
  return wish->is_there;
}

void PastDesk::answer(uint64_t after, const std::shared_ptr<Answer>& answer) {
  Read read;
  {
    Lock lock(mutex_);
    read = read_;
  }
  if (!read) return;
  std::optional<TraceRing::Copied> copied = read(after);
  {
    Lock lock(mutex_);
    answer->copied = std::move(copied);
    answer->is_there = true;
  }
  changed_.notify_all();
}

void PastDesk::close() {
  {
    Lock lock(mutex_);
    read_ = nullptr;
  }
  changed_.notify_all();
}

}  // namespace nvshare::scheduler
