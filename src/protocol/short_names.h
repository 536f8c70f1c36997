// Shorter ways to name a tenant than its name. Pure, thread-safe.
#pragma once

#include <string_view>

namespace nvshare::protocol {

// Whether `text` is how docker and podman show the container of that name: the beginning of its ID, 12 characters of it or more.
inline bool is_short_name(std::string_view kind, std::string_view name, std::string_view text) {
  constexpr size_t kShortest = 12;
  return kind == "container" && text.size() >= kShortest && name.starts_with(text);
}

}  // namespace nvshare::protocol
