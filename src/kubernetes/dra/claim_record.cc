#include "kubernetes/dra/claim_record.h"

#include <set>

#include "base/fnv.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kVersionField[] = "nvshare_dra_claims";

// Finds damage; only root writes the file.
std::string checksum_of(const std::string& text) { return fnv_1a_text(text); }

Result<Claim> read_entry(std::string_view line) {
  const Json entry = parse_json(line);
  const Json* claim = field_of(entry, "claim");
  if (claim == nullptr) return error_format("it is no entry of a claim");
  if (text_of(entry, "checksum") != checksum_of(claim->dump(-1, ' ', false, Json::error_handler_t::replace))) {
    return error_format("its checksum is wrong");
  }
  return claim_from_json(*claim);
}

}  // namespace

std::string claim_record(const std::map<std::string, Claim>& claims) {
  std::string text = Json{{kVersionField, kClaimRecordVersion}}.dump() + "\n";
  for (const auto& [uid, claim] : claims) {
    const Json json = claim_json(claim);
    text += Json{{"checksum", checksum_of(json.dump())}, {"claim", json}}.dump() + "\n";
  }
  return text;
}

Result<ClaimRecord> read_claim_record(std::string_view text) {
  ClaimRecord record;
  std::set<std::string> uids;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) continue;
    const auto left_out = [&](const char* why) { record.left_out.push_back("line " + std::to_string(number) + ": " + why); };
    if (line.find('\0') != std::string_view::npos) {  // where a parser of JSON would take the line to end
      left_out("it has a byte of zero");
      continue;
    }
    if (number == 1) {
      const int64_t version = integer_of(parse_json(line), kVersionField, 0);
      if (version > kClaimRecordVersion) {
        return error_format("it is of version %lld; this driver reads up to %d", static_cast<long long>(version), kClaimRecordVersion);
      }
      if (version != kClaimRecordVersion) left_out("it does not say the record's version");
      continue;
    }
    Result<Claim> claim = read_entry(line);
    if (!claim) {
      left_out(claim.error().text);
    } else if (!uids.insert(claim->uid).second) {
      left_out("its claim was there before");
    } else {
      record.claims.push_back(std::move(*claim));
    }
  }
  return record;
}

}  // namespace nvshare::kubernetes::dra
