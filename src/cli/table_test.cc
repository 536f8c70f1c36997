#include "cli/table.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"NAME"}, {"MEMORY", Align::kRight}});
  table.add({"train", "384 MiB"});
  table.add({"a-much-longer-name", "1 GiB"});
  EXPECT_EQ(table.draw(),
            "NAME                 MEMORY\n"
            "train               384 MiB\n"
            "a-much-longer-name    1 GiB\n");
}

TEST(Table, NoTrailingBlanksAndMissingCellsAreEmpty) {
  Table table({{"A"}, {"B"}, {"C"}});
  table.add({"x"});
  table.add({"1", "22", "333", "surplus"});
  EXPECT_EQ(table.draw(2), "  A  B   C\n  x\n  1  22  333\n");
}

TEST(Table, CellsOfWideCharactersAreAligned) {
  Table table({{"N"}, {"V", Align::kRight}});
  table.add({"ö", "1"});
  table.add({"学習", "22"});
  table.add({"oo", "3"});
  EXPECT_EQ(table.draw(), "N      V\nö      1\n学習  22\noo     3\n");
}

TEST(Table, WithinATerminalTheHighestRanksAreLeftOutAndWordsShortened) {
  Table table({{"NAME", Align::kLeft, 0, true}, {"MEMORY", Align::kRight}, {"IN", Align::kRight, 2}, {"OUT", Align::kRight, 1}});
  table.add({"a-name-of-27-characters-all", "1 GiB", "7", "8"});
  std::vector<std::string> left_out;
  EXPECT_EQ(table.draw_within(0, left_out), table.draw());
  EXPECT_EQ(table.draw_within(44, left_out), table.draw()) << "it fits";
  EXPECT_EQ(table.draw_within(41, left_out), "NAME                      MEMORY  IN  OUT\na-name-of-27-character..   1 GiB   7    8\n");
  EXPECT_TRUE(left_out.empty());
  EXPECT_EQ(table.draw_within(38, left_out), "NAME                      MEMORY  OUT\na-name-of-27-character..   1 GiB    8\n");
  EXPECT_EQ(left_out, std::vector<std::string>{"IN"});
  left_out.clear();
  EXPECT_EQ(table.draw_within(20, left_out), "NAME          MEMORY\na-name-of-..   1 GiB\n");
  EXPECT_EQ(left_out, (std::vector<std::string>{"IN", "OUT"}));
  EXPECT_EQ(table.draw_within(5, left_out), "NAME      MEMORY\na-name..   1 GiB\n") << "no further";
}

}  // namespace
}  // namespace nvshare::cli
