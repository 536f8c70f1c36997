#include "cli/convert/edits.h"

#include <algorithm>

#include "cli/convert/yaml.h"

namespace nvshare::cli::convert {

size_t Edits::line_start(size_t at) const {
  const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? byte_order_mark(text_) : newline + 1;
}

size_t Edits::next_line(size_t at) const {
  const size_t newline = text_.find('\n', at);
  return newline == std::string::npos ? text_.size() : newline + 1;
}

bool Edits::begins_line(size_t at) const {
  const size_t start = line_start(at);
  return text_.find_first_not_of(' ', start) >= at;
}

std::string Edits::comment_after(size_t at) const {
  const size_t hash = text_.find('#', at);
  const size_t end = std::min(text_.find_first_of("\r\n", at), text_.size());
  return hash < end ? text_.substr(hash, end - hash) : std::string();
}

std::string Edits::apply() {
  std::stable_sort(edits_.begin(), edits_.end(), [](const Edit& a, const Edit& b) { return a.from < b.from; });
  const size_t newline = text_.find('\n');
  const bool dos = newline != std::string::npos && newline > 0 && text_[newline - 1] == '\r';
  std::string made;
  size_t done = 0;
  for (const Edit& edit : edits_) {
    made.append(text_, done, edit.from - done);
    for (const char c : edit.what) {
      if (c == '\n' && dos) made += '\r';
      made += c;
    }
    done = edit.to;
  }
  return made.append(text_, done, std::string::npos);
}

}  // namespace nvshare::cli::convert
