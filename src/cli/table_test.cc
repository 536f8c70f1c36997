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

}  // namespace
}  // namespace nvshare::cli
