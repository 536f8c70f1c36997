// Recordings that `nvsharectl trace FILE` and `replay FILE` read, which another user may have written: whatever is in one, it is refused
// with a reason or played to its end. Input: the recording's lines.
#include <sstream>

#include "fuzz.h"
#include "replay/answers.h"
#include "replay/chrome_trace.h"
#include "replay/recording.h"

namespace {

using namespace nvshare;
using fuzz::require;

void try_picture(const std::string& text) {
  std::istringstream stream(text);
  replay::Recording lines(stream);
  replay::ChromeTrace picture;
  while (true) {
    const auto line = lines.next();
    if (!fuzz::good(line) || !*line) break;
    require((**line).number > 0, "lines have numbers");
    if (!fuzz::good(picture.add((**line).is))) break;
  }
  const std::string made = picture.finish();
  require(made.starts_with("{\"displayTimeUnit\"") && made.ends_with("]}\n"), "a picture is whole");
}

void try_answers(const std::string& text) {
  std::istringstream stream(text);
  replay::Recording lines(stream);
  replay::Answers answers;
  while (true) {
    const auto line = lines.next();
    if (!fuzz::good(line) || !*line) return;
    const auto same = answers.add(**line);
    if (!fuzz::good(same)) return;
    if (*same) continue;
    require(answers.difference().has_value(), "a difference is told");
    answers.views(answers.difference()->clients, answers.difference()->now);
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  try_picture(text);
  try_answers(text);
  return 0;
}
