#include "interposer/gate/work_end.h"

#include <algorithm>

namespace nvshare::interposer {

void WorkEnd::done(const Done& event) {
  int64_t at = 0;
  if (done_at_ns_ != 0 && event.spacing_ns > 0) {
    at = std::clamp(done_at_ns_ + event.spacing_ns, std::min(event.not_yet_ns, event.seen_ns), event.seen_ns);
  } else if (event.not_yet_ns != 0) {
    at = event.not_yet_ns + (event.seen_ns - event.not_yet_ns) / 2;
  }
  done_at_ns_ = at;
  if (event.spacing_ns > 0 && event.submissions > 0) submission_ns_ = static_cast<double>(event.spacing_ns) / event.submissions;
}

int64_t WorkEnd::at_ns(uint32_t submissions) const {
  if (done_at_ns_ == 0 || submission_ns_ <= 0) return 0;
  return done_at_ns_ + static_cast<int64_t>(submission_ns_ * submissions);
}

}  // namespace nvshare::interposer
