#include "protocol/json_read.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "protocol/json_text.h"

namespace nvshare::protocol {
namespace {

struct Part {
  int32_t small = 7;
  std::string name;
};
NVSHARE_REPORT(Part, small, name)

struct Whole {
  bool yes = false;
  int64_t number = 0;
  uint64_t large = 0;
  double share = 0;
  std::vector<uint64_t> ids;
  std::vector<Part> parts;
  std::map<std::string, int64_t> values;
  Part part;
};
NVSHARE_REPORT(Whole, yes, number, large, share, ids, parts, values, part)

std::string problem_of(const std::string& text) {
  Whole whole;
  const auto read = read_json(text, json_place(whole));
  return read ? "" : read.error().text;
}

TEST(JsonRead, WhatIsWrittenComesBack) {
  Whole whole{
      true, INT64_MIN, UINT64_MAX, 0.1, {1, 2, UINT64_MAX}, {{1, "\"a\"\n\xc3\xa4"}, {-2, ""}}, {{"x", -1}, {"", 3}}, {INT32_MIN, "b"}};
  std::string text;
  {
    JsonText out(text);
    out.open();
    each_field(whole, out);
    out.close();
    out.pass_on();
  }
  Whole back;
  const auto read = read_json(text, json_place(back));
  ASSERT_TRUE(read) << read.error().text << "\n" << text;
  EXPECT_EQ(back.yes, whole.yes);
  EXPECT_EQ(back.number, whole.number);
  EXPECT_EQ(back.large, whole.large);
  EXPECT_EQ(back.share, whole.share);
  EXPECT_EQ(back.ids, whole.ids);
  ASSERT_EQ(back.parts.size(), 2u);
  EXPECT_EQ(back.parts[0].name, whole.parts[0].name);
  EXPECT_EQ(back.parts[1].small, -2);
  EXPECT_EQ(back.values, whole.values);
  EXPECT_EQ(back.part.small, INT32_MIN);
}

// Of a later release, or an earlier one.
TEST(JsonRead, UnknownFieldsArePassedOverAndMissingOnesStay) {
  Whole whole;
  const auto read = read_json(R"({"later":{"yes":5,"parts":[[{"name":3}],null,1.5,"x"]},"part":{"later":[1,{"small":"no"}],"name":"b"},
                                  "number":null,"later":[], "share":3,"ids":[],"yes":true})",
                              json_place(whole));
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_TRUE(whole.yes);
  EXPECT_EQ(whole.number, 0);
  EXPECT_EQ(whole.share, 3.0);
  EXPECT_EQ(whole.part.name, "b");
  EXPECT_EQ(whole.part.small, 7);
  EXPECT_TRUE(whole.parts.empty());
}

TEST(JsonRead, AValueThatDoesNotFitIsRefusedByName) {
  for (const auto& [text, name] : std::map<std::string, std::string>{{R"({"yes":1})", "'yes' must be true or false"},
                                                                     {R"({"number":"1"})", "'number' must be an integer"},
                                                                     {R"({"number":1.0})", "'number' must be an integer"},
                                                                     {R"({"number":9223372036854775808})", "'number' must be an integer"},
                                                                     {R"({"large":-1})", "'large' must be an integer"},
                                                                     {R"({"share":"1"})", "'share' must be a number"},
                                                                     {R"({"ids":3})", "'ids' must be a list"},
                                                                     {R"({"ids":{}})", "'ids' must be a list"},
                                                                     {R"({"ids":[1,"2"]})", "'ids' must be an integer"},
                                                                     {R"({"parts":[{"small":2147483648}]})", "'small' must be an integer"},
                                                                     {R"({"parts":[[]]})", "'parts' must be an object"},
                                                                     {R"({"part":"x"})", "'part' must be an object"},
                                                                     {R"({"part":{"name":7}})", "'name' must be text"},
                                                                     {R"({"values":{"a":true}})", "'a' must be an integer"},
                                                                     {R"({"values":[1]})", "'values' must be an object"}}) {
    EXPECT_NE(problem_of(text).find(name), std::string::npos) << text << ": " << problem_of(text);
  }
}

TEST(JsonRead, WhatIsNoJsonObjectIsRefused) {
  const std::string deep(1'000'000, '[');
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("3"), std::string(R"({"yes":tru})"),
                                  std::string(R"({"yes":true} x)"), std::string("{\"later\":") + deep,
                                  std::string(R"({"later":)") + deep + std::string(deep.size(), ']') + "}"}) {
    EXPECT_NE(problem_of(text), "") << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace nvshare::protocol
