// Which GPUs clients may name, and which one makes room, without an engine.
#include "scheduler/gpus/gpus.h"

#include <gtest/gtest.h>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

GpuUuid uuid(uint8_t byte) {
  GpuUuid bytes;
  bytes.fill(byte);
  return bytes;
}

KnownGpu named(uint8_t byte, const std::string& account, policy::Instant at = 0) {
  KnownGpu gpu;
  gpu.uuid = uuid(byte);
  gpu.uuid_text = "GPU-" + std::to_string(byte);
  gpu.named_by = account;
  gpu.named_at = at;
  return gpu;
}

bool makes_no_room(const std::string*) { return false; }

TEST(Gpus, WhereNvmlRunsOnlyWhatItListsIsAdmitted) {
  Gpus gpus({{uuid(1), "card", kGiB}}, 2);
  EXPECT_TRUE(gpus.uses_nvml());
  EXPECT_TRUE(gpus.lists(uuid(1)));
  EXPECT_EQ(gpus.find(uuid(1)), 0u);
  EXPECT_FALSE(gpus.admit(named(2, "user 1"), "user 1", 100, makes_no_room));
  gpus.list_mig_devices({uuid(2), uuid(3)});
  EXPECT_TRUE(gpus.has_mig_devices());
  EXPECT_TRUE(gpus.admit(named(2, "user 1"), "user 1", 100, makes_no_room));
  EXPECT_EQ(gpus.add(named(2, "user 1")), 1u);
  EXPECT_FALSE(gpus.admit(named(3, "user 1"), "user 1", 100, makes_no_room)) << "one more than the scheduler takes";
}

TEST(Gpus, ElsewhereAUserNamesAFew) {
  Gpus gpus({}, 100);
  gpus.add(named(1, "user 1"));
  EXPECT_TRUE(gpus.admit(named(2, "user 1"), "user 1", 2, makes_no_room));
  gpus.add(named(2, "user 1"));
  const std::string* asked = nullptr;
  EXPECT_FALSE(gpus.admit(named(3, "user 1"), "user 1", 2, [&](const std::string* account) {
    asked = account;
    return false;
  }));
  ASSERT_NE(asked, nullptr) << "one of its own is to make room";
  EXPECT_TRUE(gpus.admit(named(3, "user 2"), "user 2", 2, makes_no_room)) << "each its own few";
}

TEST(Gpus, TheFirstToGoIsOfWhoeverNamedMostAndNamedItLongestAgo) {
  Gpus gpus({}, 100);
  gpus.add(named(1, "user 1", 10));
  gpus.add(named(2, "user 2", 30));
  gpus.add(named(3, "user 2", 20));
  gpus.add(named(4, "user 2", 40));
  EXPECT_EQ(gpus.to_forget(nullptr, {}), 2u);
  EXPECT_EQ(gpus.to_forget(nullptr, {2}), 1u) << "something of it counts";
  const std::string user = "user 1";
  EXPECT_EQ(gpus.to_forget(&user, {}), 0u);
  EXPECT_EQ(gpus.to_forget(&user, {0}), std::nullopt);
  gpus.forget(2);
  EXPECT_FALSE(gpus.find("GPU-3"));
  EXPECT_EQ(gpus.name_of(3), "GPU 2 (GPU-4)") << "the number that status shows";
  EXPECT_EQ(gpus.add(named(5, "user 1")), 2u) << "its place is used again";
}

}  // namespace
}  // namespace nvshare::scheduler
