// Whose programs share one MPS daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <tuple>

namespace nvshare::scheduler {

// A user's programs that name the same group (protocol/trust_group.h), or none. Never those of two users.
struct TrustGroup {
  uid_t user = 0;
  std::string name;  // empty: programs that name none

  bool operator==(const TrustGroup&) const = default;
  bool operator<(const TrustGroup& other) const { return std::tie(user, name) < std::tie(other.user, other.name); }
  std::string text() const { return "user " + std::to_string(user) + (name.empty() ? "" : ", trust group " + name); }
};

}  // namespace nvshare::scheduler
