#include "scheduler/memory/exports.h"

#include <gtest/gtest.h>

#include "scheduler/bounds.h"

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

// 57,000 of them came in a second, and nothing ever ended: 81 bytes each.
TEST_F(ExportsTest, WhatAClientAsksForWithoutEndIsBounded) {
  int64_t asked = 0;
  for (uint64_t request = 1; request <= 100'000; ++request) asked += exports_.ask({{2, request}, 2, kMemory}) != 0;
  EXPECT_EQ(asked, bounds::kUnansweredImports);
  exports_.client_left(2);
  EXPECT_NE(exports_.ask({{2, 1}, 2, kMemory}), 0u) << "nothing is left of it";
}

TEST_F(ExportsTest, WhatAClientImportsIsBoundedAndSoIsItsTenant) {
  int64_t imported = 0;
  uint64_t request = 0;
  for (policy::ClientId client = 2; client < 8; ++client) {
    while (const uint64_t ticket = exports_.ask({{client, ++request}, kExporter, request, "tenant"})) {
      exports_.answered(ticket, true);
      ++imported;
      ASSERT_LE(imported, 1'000'000);
    }
    EXPECT_LE(imported, bounds::kImportsPerClient * static_cast<int64_t>(client - 1));
  }
  EXPECT_EQ(imported, bounds::kImportsPerTenant);
  EXPECT_NE(exports_.ask({{99, 1}, kExporter, 1, "another"}), 0u);
  exports_.import_closed({2, 1});
  EXPECT_NE(exports_.ask({{9, 1}, kExporter, 1, "tenant"}), 0u);
}

TEST_F(ExportsTest, AnImportThatIsKnownIsNotAskedForAgain) {
  import(2, 1);
  EXPECT_EQ(exports_.ask({{2, 1}, kExporter, kMemory}), 0u);
  EXPECT_FALSE(exports_.import_closed({2, 1}));
  EXPECT_NE(exports_.ask({{2, 1}, kExporter, kMemory}), 0u);
}

// Random askers, exporters and deaths: what is held is what a slow list of the same says.
TEST_F(ExportsTest, NothingIsLeftWhenAllHaveGone) {
  unsigned state = 12345;
  const auto random = [&](unsigned below) { return (state = state * 1103515245 + 12345) / 65536 % below; };
  std::vector<uint64_t> tickets;
  for (int i = 0; i < 20'000; ++i) {
    const policy::ClientId client = 1 + random(6);
    switch (random(5)) {
      case 0:
      case 1:
        tickets.push_back(exports_.ask({{client, random(40)}, 1 + random(6), random(5), "tenant"}));
        break;
      case 2:
        if (!tickets.empty()) exports_.answered(tickets[random(static_cast<unsigned>(tickets.size()))], random(3) != 0);
        break;
      case 3:
        exports_.import_closed({client, random(40)});
        break;
      case 4:
        if (random(20) == 0) {
          for (const ImportKey& heir : exports_.client_left(client).heirs) ASSERT_NE(heir.client, client);
        } else {
          exports_.export_ended(client, random(5));
        }
        break;
    }
  }
  for (policy::ClientId client = 1; client <= 6; ++client) exports_.client_left(client);
  EXPECT_TRUE(exports_.is_empty());
}

}  // namespace
}  // namespace nvshare::scheduler
