// Whose programs share one MPS daemon.
#pragma once

#include <sys/types.h>

#include <compare>
#include <string>

namespace nvshare::scheduler {

// A user's programs that name the same group (protocol/trust_group.h), or none. Never those of two users.
struct TrustGroup {
  uid_t user = 0;
  std::string name;  // empty: programs that name none

  auto operator<=>(const TrustGroup&) const = default;
  std::string text() const { return "user " + std::to_string(user) + (name.empty() ? "" : ", trust group " + name); }
};

}  // namespace nvshare::scheduler
