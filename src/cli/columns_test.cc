#include "cli/columns.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

TEST(Columns, AsTerminalsCountThem) {
  EXPECT_EQ(width_of(""), 0U);
  EXPECT_EQ(width_of("train-7"), 7U);
  EXPECT_EQ(width_of("Größe"), 5U);
  EXPECT_EQ(width_of("Gro\u0308sse"), 6U) << "an accent by itself";
  EXPECT_EQ(width_of("学習"), 4U);
  EXPECT_EQ(width_of("ｆｕｌｌ"), 8U);
  EXPECT_EQ(width_of("한글"), 4U);
  EXPECT_EQ(width_of("a🚀b"), 4U);
  EXPECT_EQ(width_of("\u0e01\u0e34"), 1U) << "Thai, a vowel above";
  EXPECT_EQ(width_of("\xff\xc3"), 2U) << "bytes that are no UTF-8";
}

TEST(Columns, NoCharacterIsCutInTwo) {
  EXPECT_EQ(first_columns("学習", 4), "学習");
  EXPECT_EQ(first_columns("学習", 3), "学");
  EXPECT_EQ(first_columns("学習", 1), "");
  EXPECT_EQ(first_columns("o\u0308ab", 2), "o\u0308a");
}

TEST(Columns, WhatIsShortenedIsAsWideAsAsked) {
  EXPECT_EQ(shortened("train", 5), "train");
  EXPECT_EQ(shortened("training", 5), "tra..");
  EXPECT_EQ(shortened("学習ジョブ", 10), "学習ジョブ");
  EXPECT_EQ(shortened("学習ジョブ", 9), "学習ジ...") << "half a character is a point";
  EXPECT_EQ(shortened("学習ジョブ", 8), "学習ジ..");
  EXPECT_EQ(shortened("学習", 3), "学");
}

TEST(Columns, LinesEndBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 0), "one two three");
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 7, 2), "one two\n  three") << "the indent is beside it";
  EXPECT_EQ(wrapped("a-very-long-word two", 5, 1), "a-very-long-word\n two");
}

}  // namespace
}  // namespace nvshare::cli
