#include "scheduler/exports.h"

#include <gtest/gtest.h>

namespace nvshare::scheduler {
namespace {

constexpr policy::ClientId kExporter = 1;
constexpr uint64_t kMemory = 77;

class ExportsTest : public testing::Test {
 protected:
  void import(policy::ClientId client, uint64_t request) { exports_.answered(exports_.ask({{client, request}, kExporter, kMemory}), true); }
  Exports exports_;
};

TEST_F(ExportsTest, OnlyTheExporterThatWasAskedAnswers) {
  uint64_t ticket = exports_.ask({{2, 5}, kExporter, kMemory});
  EXPECT_FALSE(exports_.asked(ticket, 3));
  EXPECT_FALSE(exports_.asked(ticket + 1, kExporter));
  ASSERT_TRUE(exports_.asked(ticket, kExporter));
  EXPECT_EQ(exports_.asked(ticket, kExporter)->importer, (ImportKey{2, 5}));
  exports_.answered(ticket, false);
  EXPECT_FALSE(exports_.asked(ticket, kExporter)) << "answered once";
  EXPECT_FALSE(exports_.export_ended(kExporter, kMemory)) << "nobody imported it";
}

TEST_F(ExportsTest, MemoryPassesFromHolderToHolderAndIsEveryTimeCountedOnce) {
  import(2, 1);
  import(3, 1);
  EXPECT_FALSE(exports_.import_closed({2, 1})) << "the exporter has it";
  import(2, 2);
  import(4, 9);
  EXPECT_EQ(exports_.export_ended(kExporter, kMemory), (ImportKey{2, 2}));
  EXPECT_FALSE(exports_.import_closed({3, 1})) << "2 has it";
  EXPECT_EQ(exports_.import_closed({2, 2}), (ImportKey{4, 9}));
  EXPECT_FALSE(exports_.import_closed({4, 9}));
  EXPECT_FALSE(exports_.export_ended(kExporter, kMemory)) << "forgotten";
}

TEST_F(ExportsTest, ADeadExportersMemoryIsInheritedAndItsUnansweredImportersHearOfIt) {
  import(2, 1);
  exports_.ask({{3, 4}, kExporter, kMemory});
  auto departure = exports_.client_left(kExporter);
  EXPECT_EQ(departure.heirs, (std::vector<ImportKey>{{2, 1}}));
  EXPECT_EQ(departure.unanswered, (std::vector<ImportKey>{{3, 4}}));
  EXPECT_TRUE(exports_.client_left(2).heirs.empty());
}

TEST_F(ExportsTest, ADeadHeirHasAnHeir) {
  import(2, 1);
  import(3, 1);
  EXPECT_EQ(exports_.client_left(kExporter).heirs, (std::vector<ImportKey>{{2, 1}}));
  EXPECT_EQ(exports_.client_left(2).heirs, (std::vector<ImportKey>{{3, 1}}));
}

TEST_F(ExportsTest, WhoGivesUpWaitingIsForgotten) {
  uint64_t ticket = exports_.ask({{2, 5}, kExporter, kMemory});
  EXPECT_FALSE(exports_.import_closed({2, 5}));
  EXPECT_FALSE(exports_.asked(ticket, kExporter));
}

}  // namespace
}  // namespace nvshare::scheduler
