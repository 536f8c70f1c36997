// What a restart finds: every claim, or all but the damaged one.
#include "kubernetes/dra/claim_record.h"

#include <gtest/gtest.h>

#include "kubernetes/dra/claim_allocations.h"
#include "kubernetes/dra/test_claims.h"

namespace nvshare::kubernetes::dra {
namespace {

std::map<std::string, Claim> three_claims() {
  const DeviceModels devices = test_devices(2);
  std::map<std::string, Claim> claims;
  for (int number = 1; number <= 3; ++number) {
    Json object = test_claim(number, {{0, "1Gi", "5", "a"}, {1, "2Gi", "6", "b/c"}});
    object["status"]["allocation"]["devices"]["config"] = {
        test_config("FromClass", {{"priority", 7}, {"memoryBackend", "none"}, {"sharing", "turns"}, {"turnSeconds", 9}}, {"a"})};
    auto claim = read_claim(object.dump(), test_claim_name(number), {kTestNode, devices, 0});
    EXPECT_TRUE(claim) << (claim ? "" : claim.error().text);
    if (claim && number == 2) claim->members = {{test_uid(900012), "pod-12"}, {test_uid(900022), "pod-22"}};
    if (claim) claims.emplace(claim->uid, std::move(*claim));
  }
  return claims;
}

TEST(DraClaimRecord, EveryClaimComesBackAsItWas) {
  const auto claims = three_claims();
  const auto read = read_claim_record(claim_record(claims));
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_TRUE(read->left_out.empty());
  ASSERT_EQ(read->claims.size(), 3U);
  for (const Claim& claim : read->claims) EXPECT_EQ(claim, claims.at(claim.uid));
  const auto none = read_claim_record("");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->claims.empty() && none->left_out.empty());
}

TEST(DraClaimRecord, WhateverByteIsDamagedCostsOneClaimAtMost) {
  const auto claims = three_claims();
  const std::string good = claim_record(claims);
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char wrong : {'\0', '"', 'x', '9'}) {
      std::string text = good;
      if (text[at] == wrong) continue;
      const bool joins_lines = text[at] == '\n';
      text[at] = wrong;
      const auto read = read_claim_record(text);
      if (!read) {
        EXPECT_LT(at, good.find('\n')) << "only the version may refuse all";
        continue;
      }
      EXPECT_GE(read->claims.size(), joins_lines ? 1U : 2U) << at;
      EXPECT_FALSE(read->left_out.empty()) << at << " " << wrong;
      for (const Claim& claim : read->claims) EXPECT_EQ(claim, claims.at(claim.uid));
    }
  }
}

TEST(DraClaimRecord, ARecordThatEndsEarlyLosesOnlyItsEnd) {
  const std::string good = claim_record(three_claims());
  const auto read = read_claim_record(std::string_view(good).substr(0, good.size() - 20));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->claims.size(), 2U);
  EXPECT_EQ(read->left_out.size(), 1U);
}

TEST(DraClaimRecord, ALaterVersionIsRefusedAndNotTakenForEmpty) {
  const auto read = read_claim_record("{\"nvshare_dra_claims\":2}\n{\"other\":1}\n");
  ASSERT_FALSE(read);
  EXPECT_NE(std::string(read.error().text).find("version 2; this driver reads up to 1"), std::string::npos);
}

TEST(DraClaimRecord, AnEntryTwiceCountsOnce) {
  const std::string good = claim_record(three_claims());
  const size_t second = good.find('\n') + 1;
  const auto read = read_claim_record(good + good.substr(second, good.find('\n', second) + 1 - second));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->claims.size(), 3U);
  EXPECT_EQ(read->left_out.size(), 1U);
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
