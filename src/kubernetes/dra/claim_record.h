// What a restart of the driver must not forget: the prepared claims, one a line, so that damage costs the claims whose lines it hit and no
// others. Pure functions.
//
//   {"nvshare_dra_claims":1}
//   {"checksum":"9ae1...","claim":{"uid":...}}
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/claim.h"

namespace nvshare::kubernetes::dra {

inline constexpr int kClaimRecordVersion = 1;

std::string claim_record(const std::map<std::string, Claim>& claims);

struct ClaimRecord {
  std::vector<Claim> claims;
  std::vector<std::string> left_out;  // what could not be read, and why
};
// An error: a record of a later version, whose claims this driver must not take for none.
Result<ClaimRecord> read_claim_record(std::string_view text);

}  // namespace nvshare::kubernetes::dra
