#include "base/parse.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/printable.h"

namespace nvshare {
namespace {

TEST(ParseBytes, AcceptsEveryDocumentedForm) {
  EXPECT_EQ(*parse_bytes("0"), 0u);
  EXPECT_EQ(*parse_bytes("123"), 123u);
  EXPECT_EQ(*parse_bytes("4K"), 4000u);
  EXPECT_EQ(*parse_bytes("4Ki"), 4096u);
  EXPECT_EQ(*parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(*parse_bytes("1.5Gi"), 1610612736u);
  EXPECT_EQ(*parse_bytes("2T"), 2000000000000u);
  EXPECT_EQ(*parse_bytes("9223372036854775807"), 9223372036854775807u);
}

TEST(ParseBytes, RefusesTheRestAndNamesIt) {
  for (const char* text : {"", " ", "Gi", "-1", "4 Gi", "4gi", "1e9", "1.5", "1.", "4GiX", "9223372036854775808", "9999999Ti", "0x10"}) {
    auto result = parse_bytes(text);
    ASSERT_FALSE(result) << text;
    EXPECT_NE(std::strstr(result.error().text, "accepted"), nullptr);
    EXPECT_NE(std::strstr(result.error().text, text), nullptr);
  }
}

TEST(ParseDuration, SecondsAreTheDefault) {
  EXPECT_EQ(*parse_duration_ns("60"), 60'000'000'000);
  EXPECT_EQ(*parse_duration_ns("0.25"), 250'000'000);
  EXPECT_EQ(*parse_duration_ns("50ms"), 50'000'000);
  EXPECT_EQ(*parse_duration_ns("2min"), 120'000'000'000);
  EXPECT_FALSE(parse_duration_ns("fast"));
  EXPECT_FALSE(parse_duration_ns("-5"));
}

TEST(ParseInteger, HoldsToTheRange) {
  EXPECT_EQ(*parse_integer("-3", -5, 5), -3);
  EXPECT_FALSE(parse_integer("6", -5, 5));
  EXPECT_FALSE(parse_integer("1.0", -5, 5));
  EXPECT_FALSE(parse_integer("", -5, 5));
}

TEST(ParseDecimal, HoldsToTheRange) {
  EXPECT_DOUBLE_EQ(*parse_decimal("1.25", 0, 2), 1.25);
  EXPECT_FALSE(parse_decimal("2.5", 0, 2));
  EXPECT_FALSE(parse_decimal("1x", 0, 2));
}

TEST(Printable, TakesOutEveryControlCharacter) {
  EXPECT_EQ(printable("train\x1b[2J\x7f\n"), "train?[2J??");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "31mb"),
            "a?31mb")
      << "U+009B, which terminals take for an escape and a bracket";
  EXPECT_EQ(printable("\xc2\x80\xc2\x9f\xc2\xa0"), "??\xc2\xa0");
  EXPECT_EQ(printable("a\x9b"
                      "31m"),
            "a?31m")
      << "the same as one byte";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "???") << "the same, longer than it need be";
  EXPECT_EQ(printable("Größe 日本 \xf0\x9f\x98\x80"), "Größe 日本 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("cut \xe6\x97"), "cut ??");
  EXPECT_EQ(printable("\xed\xa0\x80 \xf4\x90\x80\x80 \xf4\x8f\xbf\xbd"), "??? ???? \xf4\x8f\xbf\xbd") << "half a pair, and beyond the last";
  EXPECT_EQ(printable("a\u202egnp\u2066b\u200fc\u061cd\u2028e\u2027\u202f\u2065"), "a?gnp?b?c?d?e\u2027\u202f\u2065")
      << "which turn a line around";
}

}  // namespace
}  // namespace nvshare
