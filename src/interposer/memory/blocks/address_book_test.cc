#include "interposer/memory/blocks/address_book.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr cuda::CUdeviceptr kBase = 0x302000000;

class AddressBookTest : public testing::Test {
 protected:
  void SetUp() override {
    handle_.number = 7;
    book_.add_handle(&handle_);
    book_.add_reservation(kBase, 8 * kPage);
  }
  Mapping* map(size_t page, size_t pages) {
    auto* mapping = new Mapping;
    mapping->base = kBase + page * kPage;
    mapping->bytes = pages * kPage;
    mapping->handle = &handle_;
    book_.insert(mapping);
    return mapping;
  }
  static cuda::CUdeviceptr at(size_t page) { return kBase + page * kPage; }
  void TearDown() override {
    while (!handle_.mappings.empty()) book_.erase(handle_.mappings.back());
    EXPECT_EQ(book_.mapping_count(), 0u);
  }

  AddressBook book_;
  ProgramHandle handle_;
};

TEST_F(AddressBookTest, AReservationHoldsWhatIsWhollyInside) {
  book_.add_reservation(kBase + 8 * kPage, kPage);  // next to it
  EXPECT_NE(book_.reservation(at(0), 8 * kPage), nullptr);
  EXPECT_EQ(book_.reservation(at(0), 9 * kPage), nullptr);
  EXPECT_EQ(book_.reservation(at(0) - 1, 1), nullptr);
  EXPECT_EQ(book_.reservation(at(7), SIZE_MAX), nullptr);
  EXPECT_EQ(book_.reservation(at(8), kPage)->base, at(8));
  book_.remove_reservation(kBase);
  EXPECT_EQ(book_.reservation(at(0), kPage), nullptr);
  EXPECT_NE(book_.reservation(at(8), kPage), nullptr);
}

TEST_F(AddressBookTest, CoverTakesWholeMappingsWithoutHoles) {
  Mapping* second = map(2, 2);
  Mapping* first = map(0, 2);
  Mapping* third = map(5, 1);
  EXPECT_EQ(book_.cover(at(0), 4 * kPage), (std::vector<Mapping*>{first, second}));
  EXPECT_EQ(book_.cover(at(5), kPage), (std::vector<Mapping*>{third}));
  EXPECT_TRUE(book_.cover(at(0), kPage).empty());
  EXPECT_TRUE(book_.cover(at(1), 3 * kPage).empty());
  EXPECT_TRUE(book_.cover(at(0), 6 * kPage).empty()) << "there is a hole";
  EXPECT_TRUE(book_.cover(at(4), kPage).empty());
  EXPECT_TRUE(book_.cover(at(0), 0).empty());
}

TEST_F(AddressBookTest, OverlapsAndTouched) {
  Mapping* first = map(1, 2);
  Mapping* second = map(5, 1);
  EXPECT_FALSE(book_.overlaps(at(0), kPage));
  EXPECT_TRUE(book_.overlaps(at(0), kPage + 1));
  EXPECT_TRUE(book_.overlaps(at(2), kPage));
  EXPECT_FALSE(book_.overlaps(at(3), 2 * kPage));
  EXPECT_TRUE(book_.overlaps(at(0), SIZE_MAX / 2));
  EXPECT_EQ(book_.touched(at(0), 8 * kPage), (std::vector<Mapping*>{first, second}));
  EXPECT_EQ(book_.touched(at(2), 4 * kPage), (std::vector<Mapping*>{first, second}));
  EXPECT_EQ(book_.touched(at(1), 2 * kPage), (std::vector<Mapping*>{first}));
  EXPECT_TRUE(book_.touched(at(3), 2 * kPage).empty());
  EXPECT_TRUE(book_.touched(at(1), 0).empty());
  EXPECT_EQ(book_.find(at(2) + 5), first);
  EXPECT_EQ(book_.find(at(3)), nullptr);
}

TEST_F(AddressBookTest, AHandleKnowsItsMappings) {
  Mapping* first = map(0, 1);
  Mapping* second = map(3, 1);
  EXPECT_EQ(handle_.mappings, (std::vector<Mapping*>{first, second}));
  book_.erase(first);
  EXPECT_EQ(handle_.mappings, (std::vector<Mapping*>{second}));
  EXPECT_EQ(book_.find(at(0)), nullptr);
  EXPECT_EQ(book_.find(at(3)), second);
  EXPECT_EQ(book_.handle(7), &handle_);
  EXPECT_EQ(book_.handle(6), nullptr);
  book_.remove_handle(&handle_);
  EXPECT_EQ(book_.handle(7), nullptr);
}

TEST_F(AddressBookTest, AccessIsKeptForEachLocation) {
  Mapping* mapping = map(0, 1);
  const cuda::CUmemLocation own{cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const cuda::CUmemLocation peer{cuda::CU_MEM_LOCATION_TYPE_DEVICE, 1};
  EXPECT_EQ(mapping->access_of(own), cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE);
  mapping->set_access({own, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  mapping->set_access({peer, cuda::CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_EQ(mapping->access_of(own), cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(mapping->access_of(peer), cuda::CU_MEM_ACCESS_FLAGS_PROT_READ);
  mapping->set_access({own, cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE});
  EXPECT_EQ(mapping->access_of(own), cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(mapping->access_of(peer), cuda::CU_MEM_ACCESS_FLAGS_PROT_READ);
}

}  // namespace
}  // namespace nvshare::interposer
