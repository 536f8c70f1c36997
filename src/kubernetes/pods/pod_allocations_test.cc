// What is known of pods out of two lists of the kubelet that come at different times, and what is left of it when one cannot be read.
#include "kubernetes/pods/pod_allocations.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kubernetes/test_amounts.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;

PodDevices devices(const std::set<std::string>& gpus, int units) {
  PodDevices pod;
  pod["main"].gpus = gpus;
  for (int i = 0; i < units; ++i) pod["main"].memory.insert(unit_id(Resource::kMemory, i));
  return pod;
}

Checkpoint checkpoint(std::map<std::string, PodDevices> pods) {
  Checkpoint read;
  read.pods = std::move(pods);
  return read;
}

HeldDevices held(const std::string& name_space, const std::string& pod, const std::string& gpu) {
  return {name_space, pod, "main", {gpu}, {}, {}};
}

// "uid name memory in GiB;" of each, with a '?' where not all is known.
std::string shown(const PodAllocations& grants) {
  std::string text;
  for (const auto& [uid, pod] : grants.pods()) {
    text += uid + " " + (pod.name.empty() ? "-" : pod.name) + " " + std::to_string(pod.allocation.memory / kGib) + (pod.sure ? ";" : "?;");
  }
  return text;
}

TEST(PodAllocations, HaveTheNameUnderWhichTheirDevicesAreListed) {
  PodAllocations grants({});
  grants.named({held("team", "train", "GPU-a::0")});
  EXPECT_TRUE(grants.all_named());
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}, {"bb", devices({"GPU-a::1"}, 2)}}));
  EXPECT_EQ(shown(grants), "aa team/train 4;bb - 2;");
  EXPECT_EQ(grants.find("aa")->name_space(), "team");
  EXPECT_FALSE(grants.all_named());
  grants.named({held("team", "train", "GPU-a::0"), held("web", "serve", "GPU-a::1")});
  EXPECT_EQ(shown(grants), "aa team/train 4;bb web/serve 2;");
  EXPECT_TRUE(grants.all_named());
  grants.named({});
  EXPECT_EQ(shown(grants), "aa team/train 4;bb web/serve 2;") << "a kubelet that has just started lists none";
  EXPECT_EQ(grants.find("cc"), nullptr);
}

TEST(PodAllocations, AnOlderListDoesNotNameThePodThatHasTheDeviceNow) {
  PodAllocations grants({});
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}}));
  grants.named({held("team", "train", "GPU-a::0")});
  grants.read(checkpoint({{"bb", devices({"GPU-a::0"}, 2)}}));
  EXPECT_EQ(shown(grants), "bb - 2;");
  grants.named({held("web", "serve", "GPU-a::0")});
  EXPECT_EQ(shown(grants), "bb web/serve 2;");
}

TEST(PodAllocations, NothingIsConcludedBeforeACheckpointWasReadAsAWhole) {
  PodAllocations grants({});
  EXPECT_FALSE(grants.known());
  Checkpoint damaged = checkpoint({{"aa", devices({"GPU-a::0"}, 4)}});
  damaged.whole = false;
  grants.read(damaged);
  EXPECT_FALSE(grants.known());
  EXPECT_EQ(shown(grants), "aa - 0?;") << "the entry that was not understood may be its own";
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}, {"bb", devices({"GPU-a::1"}, 2)}}));
  EXPECT_TRUE(grants.known());
  EXPECT_EQ(shown(grants), "aa - 4;bb - 2;");
  grants.read(damaged);
  EXPECT_EQ(shown(grants), "aa - 4;bb - 2;") << "a missing pod may be the one that was not understood";
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}}));
  EXPECT_EQ(shown(grants), "aa - 4;");
}

TEST(PodAllocations, APodThatIsReadInHalfKeepsWhatWasKnown) {
  PodAllocations grants({});
  Checkpoint half = checkpoint({{"aa", devices({"GPU-a::0"}, 0)}, {"bb", devices({"GPU-a::1"}, 2)}});
  half.half_read = {"aa"};
  grants.read(half);
  EXPECT_EQ(shown(grants), "aa - 0?;bb - 2;") << "half of a pod would be a wrong limit";
  EXPECT_TRUE(grants.known());
  grants.named({held("team", "train", "GPU-a::0")});
  EXPECT_EQ(grants.find("aa")->name, "team/train");
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}}));
  grants.read(half);
  EXPECT_EQ(shown(grants), "aa team/train 4;bb - 2;");
}

// An entry of no known pod cannot be read, again and again: pods that have ended are forgotten all the same.
TEST(PodAllocations, WhoseDevicesAreAnothersByNowAreForgotten) {
  PodAllocations grants({});
  grants.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}, {"bb", devices({"GPU-a::1"}, 2)}}));
  Checkpoint damaged = checkpoint({{"cc", devices({"GPU-a::0"}, 3)}});
  damaged.whole = false;
  grants.read(damaged);
  EXPECT_EQ(grants.find("aa"), nullptr);
  EXPECT_NE(grants.find("bb"), nullptr) << "it may be what could not be read";
  EXPECT_NE(grants.find("cc"), nullptr);
}

TEST(PodAllocations, SurviveARestart) {
  PodAllocations before({});
  before.read(checkpoint({{"aa", devices({"GPU-a::0", "GPU-b::0"}, 4)}, {"bb", devices({"GPU-a::1"}, 2)}}));
  before.named({held("team", "train", "GPU-b::0")});
  PodAllocations grants({});
  auto left_out = grants.restore(before.record());
  ASSERT_TRUE(left_out) << left_out.error().text;
  EXPECT_TRUE(left_out->empty());
  EXPECT_EQ(shown(grants), shown(before));
  EXPECT_EQ(grants.find("aa")->allocation, before.find("aa")->allocation);
  EXPECT_FALSE(grants.known()) << "pods may have come and gone meanwhile";
  EXPECT_EQ(grants.record(), before.record());

  Json record = Json::parse(before.record());
  record["pods"][0]["uid"] = "../aa";
  record["pods"][1]["core"] = 0;
  record["pods"].push_back(Json::parse(before.record())["pods"][1]);
  record["pods"].push_back(record["pods"][2]);
  record["pods"][3]["uid"] = "dd";
  record["pods"][3]["memory"] = (int64_t{1} << 50) + 1;  // a request with it would be refused as a whole
  auto some = grants.restore(record.dump());
  ASSERT_TRUE(some);
  EXPECT_EQ(*some,
            (std::vector<std::string>{"pod '../aa' has no pod's UID; it is left out", "pod 'bb' has an impossible grant; it is left out",
                                      "pod 'dd' has an impossible grant; it is left out"}));
  EXPECT_EQ(shown(grants), "bb - 2;");
  const std::string deep = R"({"format":1,"pods":[],"other":)" + std::string(100, '[') + std::string(100, ']') + "}";
  for (const char* damaged : {"", "{", "[]", R"({"format":2,"pods":[]})", R"({"format":1,"pods":[{"uid":"aa"}]})", deep.c_str()}) {
    EXPECT_FALSE(grants.restore(damaged)) << damaged;
    EXPECT_EQ(shown(grants), "bb - 2;") << "as before";
  }
}

// Another NVSHARE_GPU_MEMORY_UNIT while pods run.
TEST(PodAllocations, HaveWhatTheirUnitsWereWorthWhenTheyCame) {
  PodAllocations before({});
  PodDevices without = devices({"GPU-a::1"}, 0);
  before.read(checkpoint({{"aa", devices({"GPU-a::0"}, 4)}, {"bb", without}}));
  Division other;
  other.memory_unit = 2 * kGib;
  other.default_memory = 3 * kGib;
  PodAllocations grants(other);
  ASSERT_TRUE(grants.restore(before.record()));
  grants.read(
      checkpoint({{"aa", devices({"GPU-a::0"}, 4)}, {"bb", without}, {"cc", devices({"GPU-a::2"}, 4)}, {"dd", devices({"GPU-a::3"}, 0)}}));
  EXPECT_EQ(shown(grants), "aa - 4;bb - 3;cc - 8;dd - 3;");
  PodAllocations back({});
  ASSERT_TRUE(back.restore(grants.record()));
  back.read(checkpoint({{"cc", devices({"GPU-a::2"}, 4)}}));
  EXPECT_EQ(shown(back), "cc - 8;");
  Json record = Json::parse(before.record());
  record["pods"][0]["memory_unit"] = 0;
  auto left_out = back.restore(record.dump());
  ASSERT_TRUE(left_out);
  EXPECT_EQ(left_out->size(), 1u);
}

}  // namespace
}  // namespace nvshare::kubernetes
