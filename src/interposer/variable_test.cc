#include "interposer/variable.h"

#include <gtest/gtest.h>

#include <string>

namespace nvshare::interposer {
namespace {

enum class Colour { kNone, kRed, kGreen, kGrey };

constexpr ChoiceVariable<Colour, 2> kColour = {
    .name = "NVSHARE_TEST_COLOUR",
    .choices = {{"red", Colour::kRed}, {"green", Colour::kGreen}},
    .unset = Colour::kNone,
    .wrong = Colour::kGrey,
    .then = "Going on in grey",
    .meaning = "for this test",
};

struct Read {
  Colour colour;
  std::string said;
};

Read read(const char* text) {
  text != nullptr ? setenv(kColour.name, text, 1) : unsetenv(kColour.name);
  testing::internal::CaptureStderr();
  const Colour colour = value_of(kColour);
  return {colour, testing::internal::GetCapturedStderr()};
}

TEST(ChoiceVariable, IsWhatItsRowSays) {
  EXPECT_EQ(read("red").colour, Colour::kRed);
  EXPECT_EQ(read("green").colour, Colour::kGreen);
  EXPECT_EQ(read(nullptr).colour, Colour::kNone);
  EXPECT_EQ(read("").colour, Colour::kNone) << "service managers write a variable that is not set like that";
  EXPECT_EQ(read("green").said, "");
  EXPECT_EQ(read(nullptr).said, "");
}

TEST(ChoiceVariable, AWrongValueIsNamedWithWhatIsAccepted) {
  for (const char* wrong : {"Red", "blue", "re", "red "}) {
    const Read found = read(wrong);
    EXPECT_EQ(found.colour, Colour::kGrey);
    EXPECT_NE(found.said.find("error: NVSHARE_TEST_COLOUR is '" + std::string(wrong) + "'; accepted: red, green. Going on in grey\n"),
              std::string::npos)
        << found.said;
  }
}

TEST(ChoiceVariable, AValueOfAnyLengthFits) {
  const Read found = read(std::string(5000, 'x').c_str());
  EXPECT_NE(found.said.find("'" + std::string(40, 'x') + "'; accepted: red, green. Going on in grey\n"), std::string::npos) << found.said;
  char line[40];
  kColour.explain("blue", line);
  EXPECT_STREQ(line, "NVSHARE_TEST_COLOUR is 'blue'; accepted");
}

}  // namespace
}  // namespace nvshare::interposer
