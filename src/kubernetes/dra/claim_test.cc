// Amounts, parameters, allocated claims, sums over a GPU, what follows for pods, and what containers are given.
#include "kubernetes/dra/claim.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "kubernetes/dra/claim_allocations.h"
#include "kubernetes/dra/claim_cdi.h"
#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes::dra {
namespace {

std::string refusal(const Json& object, int number = 1, int priority_max = 0) {
  const DeviceModels devices = test_devices(2);
  const auto claim = read_claim(object.dump(), test_claim_name(number), {kTestNode, devices, priority_max});
  return claim ? "" : claim.error().text;
}

Claim prepared(int number, const std::vector<TestPart>& parts) {
  const DeviceModels devices = test_devices(4);
  auto claim = read_claim(test_claim(number, parts).dump(), test_claim_name(number), {kTestNode, devices, 0});
  EXPECT_TRUE(claim) << (claim ? "" : claim.error().text);
  return claim ? std::move(*claim) : Claim();
}

TEST(DraQuantity, AmountsAreReadAsKubernetesReadsThem) {
  const std::pair<const char*, int64_t> good[] = {{"0", 0},
                                                  {"30", 30},
                                                  {"80Gi", 80 * kTestGib},
                                                  {"1.5Gi", 3 * kTestGib / 2},
                                                  {"1500m", 2},
                                                  {"2e3", 2000},
                                                  {"2E3", 2000},
                                                  {"1k", 1000},
                                                  {"1M", 1'000'000},
                                                  {"0.1Ki", 103},
                                                  {"+5", 5},
                                                  {"1e-3", 1},
                                                  {"0.000001Mi", 2},
                                                  {"1Pi", 1LL << 50},
                                                  {"100n", 1},
                                                  {"2E", 2'000'000'000'000'000'000}};
  for (const auto& [text, value] : good) {
    const auto read = parse_quantity(text);
    ASSERT_TRUE(read) << text << ": " << read.error().text;
    EXPECT_EQ(*read, value) << text;
  }
  for (const char* bad :
       {"", "Gi", "-1", "1 Gi", "1gi", "0x10", "1e", "1e99", "9Ei", "1..2", "12345678901234567890", "1Gi2", "e3", "1K", "1ii"}) {
    EXPECT_FALSE(parse_quantity(bad)) << bad;
  }
  EXPECT_EQ(bytes_quantity(80 * kTestGib), "80Gi");
  EXPECT_EQ(bytes_quantity(81559LL << 20), "81559Mi");
  EXPECT_EQ(bytes_quantity(0), "0");
}

TEST(DraShareConfig, UnknownFieldsAndValuesOutOfRangeAreRefusedByName) {
  const auto error = [](const Json& fields, int priority_max = 0, bool is_class = false) {
    Json parameters = {{"apiVersion", kConfigVersion}, {"kind", kConfigKind}};
    parameters.update(fields);
    const auto read = parse_share_config(parameters, {is_class, priority_max});
    return std::string(read ? "" : read.error().text);
  };
  EXPECT_EQ(error({{"priority", -100}, {"memoryBackend", "managed"}}), "");
  EXPECT_EQ(error({{"priority", 100}}, 100), "");
  EXPECT_EQ(error({{"sharing", "turns"}}), "");
  EXPECT_EQ(error({{"sharing", "together"}, {"turnSeconds", 3600}}, 0, true), "");
  EXPECT_NE(error({{"turnLength", "1s"}}).find("no field 'turnLength'; accepted: priority, memoryBackend, sharing, turnSeconds"),
            std::string::npos);
  EXPECT_NE(error({{"sharing", "mps"}}).find("sharing is \"mps\"; accepted: \"node\", \"together\", \"turns\", \"auto\""),
            std::string::npos);
  EXPECT_NE(error({{"sharing", true}}).find("sharing is true"), std::string::npos);
  EXPECT_NE(error({{"turnSeconds", 5}}).find("turnSeconds is accepted in a DeviceClass only"), std::string::npos);
  for (const Json& bad : {Json(0), Json(3601), Json(1.5), Json("5"), Json(-1), Json(18446744073709551615ULL)}) {
    EXPECT_NE(error({{"turnSeconds", bad}}, 0, true).find("accepted: an integer from 1 to 3600"), std::string::npos) << bad;
  }
  EXPECT_NE(error({{"mpsGroup", "team"}}).find("no field 'mpsGroup': MPS is not for pods"), std::string::npos);
  EXPECT_NE(error({{"priority", 1}}).find("priority is 1; accepted on this node: an integer from -100 to 0"), std::string::npos);
  EXPECT_NE(error({{"priority", "5"}}), "");
  EXPECT_NE(error({{"priority", 18446744073709551615ULL}}), "");
  EXPECT_NE(error({{"priority", -1.5}}), "");
  EXPECT_NE(error({{"memoryBackend", "swap"}}).find("memoryBackend is \"swap\""), std::string::npos);
  EXPECT_NE(error({{"memoryBackend", Json::object()}}), "");
  EXPECT_NE(error({{"kind", "GpuConfig"}}).find("kind 'GpuConfig'"), std::string::npos);
  EXPECT_NE(error({{"apiVersion", "gpu.nvshare.com/v9"}}).find("gpu.nvshare.com/v9"), std::string::npos);
  EXPECT_FALSE(parse_share_config(Json::array(), {}));
}

TEST(DraClaim, EachAllocatedDeviceOfOursBecomesAShare) {
  Json object = test_claim(1, {{0, "4Gi", "25", "main"}, {0, "1025Mi", "10", "second/small"}});
  object["status"]["allocation"]["devices"]["results"].push_back({{"driver", "other.example.com"}, {"device", "nic-0"}});
  const DeviceModels devices = test_devices(2);
  const auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
  ASSERT_TRUE(claim) << claim.error().text;
  ASSERT_EQ(claim->shares.size(), 2U);
  EXPECT_EQ(claim->pod_uid, test_uid(900001));
  EXPECT_EQ(claim->shares[0].gpu, test_gpu(0));
  EXPECT_EQ(claim->shares[0].memory, 4 * kTestGib);
  EXPECT_EQ(claim->shares[1].memory, 1025LL << 20);
  EXPECT_EQ(claim->shares[1].cores, 10);
  EXPECT_EQ(claim->shares[1].base_request(), "second");
  EXPECT_NE(claim->shares[0].id, claim->shares[1].id);
}

TEST(DraClaim, CapacitiesWithTheDriversDomainAreFound) {
  Json object = test_claim(1, {{}});
  object["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {{"gpu.nvshare.com/memory", "2Gi"},
                                                                                 {"gpu.nvshare.com/cores", "5"}};
  EXPECT_EQ(refusal(object), "");
}

TEST(DraClaim, AdminAccessTakesNothingAndLooks) {
  Json object = test_claim(1, {{0, "16Gi", "100"}, {1, "0", "0"}});
  Json& results = object["status"]["allocation"]["devices"]["results"];
  for (Json& result : results) result["adminAccess"] = true;
  results[1].erase("shareID");
  results[1].erase("consumedCapacity");
  const DeviceModels devices = test_devices(2);
  const auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
  ASSERT_TRUE(claim) << claim.error().text;
  EXPECT_FALSE(has_cdi_spec(*claim)) << "no library: it sees the GPU as it is";
  for (const Share& share : claim->shares) EXPECT_EQ(cdi_ids_of(*claim, share), std::vector{"nvidia.com/gpu=" + share.gpu});
  const auto again = claim_from_json(claim_json(*claim));
  ASSERT_TRUE(again) << again.error().text;
  EXPECT_EQ(*again, *claim);

  ClaimAllocations allocations;
  const auto others =
      read_claim(test_claim(2, {{0, "16Gi", "100"}, {1, "16Gi", "100"}}).dump(), test_claim_name(2), {kTestNode, devices, 0});
  ASSERT_TRUE(others) << others.error().text;
  ASSERT_TRUE(allocations.admit(*others, devices));
  ASSERT_TRUE(allocations.admit(*claim, devices)) << "beside whole GPUs that others have";
  const auto limits = allocations.limits_of(claim->pod_uid);
  EXPECT_FALSE(limits.gone);
  EXPECT_EQ(limits.gpu_memory_on, (std::map<std::string, int64_t>{{test_gpu(0), kMemoryStep}, {test_gpu(1), kMemoryStep}}));
  EXPECT_EQ(limits.gpu_core_limit, 1);
  EXPECT_EQ(limits.gpu_core_reserved, 0);
  allocations.remove(claim->uid);
  EXPECT_TRUE(allocations.limits_of(claim->pod_uid).gone);
}

TEST(DraClaim, AdminAccessLowersNoShareOfThePod) {
  Json object = test_claim(1, {{0, "4Gi", "25"}, {0, "0", "0"}, {1, "0", "0"}});
  for (const int i : {1, 2}) object["status"]["allocation"]["devices"]["results"][static_cast<size_t>(i)]["adminAccess"] = true;
  const DeviceModels devices = test_devices(2);
  const auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
  ASSERT_TRUE(claim) << claim.error().text;
  EXPECT_TRUE(has_cdi_spec(*claim));
  EXPECT_EQ(parse_json(cdi_spec_of(*claim, {}))["devices"].size(), 1u);
  ClaimAllocations allocations;
  ASSERT_TRUE(allocations.admit(*claim, devices));
  const auto limits = allocations.limits_of(claim->pod_uid);
  EXPECT_EQ(limits.gpu_memory_on, (std::map<std::string, int64_t>{{test_gpu(0), 4 * kTestGib}, {test_gpu(1), kMemoryStep}}));
  EXPECT_EQ(limits.gpu_core_limit, 25);
  EXPECT_EQ(limits.gpu_core_reserved, 25);
}

TEST(DraClaim, WhatCannotBePreparedIsRefusedWithItsReason) {
  const auto with = [](const std::function<void(Json&)>& change) {
    Json object = test_claim(1, {{}});
    change(object);
    return refusal(object);
  };
  const auto result = [](Json& object) -> Json& { return object["status"]["allocation"]["devices"]["results"][0]; };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos ? "" : text; };
  EXPECT_EQ(has(with([](Json& o) { o["metadata"]["uid"] = "77aa"; }), "made anew"), "");
  EXPECT_EQ(has(with([](Json& o) { o["status"].erase("allocation"); }), "not allocated"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["shareID"] = "x", result(o)["adminAccess"] = true; }), "DRAConsumableCapacity"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o).erase("shareID"); }), "DRAConsumableCapacity"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o).erase("consumedCapacity"); }), "DRAConsumableCapacity"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["consumedCapacity"].erase("cores"); }), "says no cores"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["consumedCapacity"]["memory"] = "0"; }), "accepted: 1Mi to 16Gi"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["consumedCapacity"]["memory"] = "17Gi"; }), "accepted: 1Mi to 16Gi"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["consumedCapacity"]["cores"] = "0"; }), "accepted: 1 to 100"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["consumedCapacity"]["cores"] = "101"; }), "accepted: 1 to 100"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["device"] = "gpu-none"; }), "no such device"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["pool"] = "node-2"; }), "another node's pool"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["request"] = "a/../b"; }), "no name of a request"), "");
  EXPECT_EQ(has(with([&](Json& o) { result(o)["driver"] = "other"; }), "it has 0 devices"), "");
  EXPECT_EQ(has(with([](Json& o) { o["status"]["reservedFor"] = Json::array(); }), "reserved for 0 pods"), "");
  EXPECT_EQ(has(with([](Json& o) { o["status"]["reservedFor"] = Json(257, o["status"]["reservedFor"][0]); }), "reserved for 257 pods"), "");
  EXPECT_EQ(has(with([](Json& o) { o["status"]["reservedFor"][0]["uid"] = "../x"; }), "is no pod"), "");
  EXPECT_EQ(has(with([](Json& o) { o["status"]["reservedFor"][0]["resource"] = "podgroups"; }), "is no pod"), "");
  EXPECT_NE(refusal(Json::array()), "");
  Json twice = test_claim(1, {{}, {}});
  twice["status"]["allocation"]["devices"]["results"][1]["shareID"] = twice["status"]["allocation"]["devices"]["results"][0]["shareID"];
  EXPECT_EQ(has(refusal(twice), "have the shareID"), "");
}

TEST(DraClaim, NamesThatWouldBecomePathsAreChecked) {
  EXPECT_TRUE(check_name(test_claim_name(1)));
  EXPECT_FALSE(check_name({"team", "claim", "../../etc"}));
  EXPECT_FALSE(check_name({"team/..", "claim", test_uid(1)}));
  EXPECT_FALSE(check_name({"team", "a?b=c", test_uid(1)}));
  EXPECT_FALSE(check_name({"team", "..", test_uid(1)}));
  EXPECT_FALSE(check_name({"", "claim", test_uid(1)}));
}

TEST(DraClaim, TheClassComesBeforeTheClaimAndAClaimOnlyLowersItsPriority) {
  Json object = test_claim(1, {{0, "1Gi", "5", "main/sub"}, {1, "1Gi", "5", "other"}});
  object["status"]["allocation"]["devices"]["config"] = {
      test_config("FromClaim", {{"priority", -5}, {"memoryBackend", "none"}}, {"main"}),
      test_config("FromClass", {{"priority", 50}, {"memoryBackend", "managed"}}),
      {{"source", "FromClaim"}, {"opaque", {{"driver", "other.example.com"}, {"parameters", {{"anything", 1}}}}}},
  };
  const DeviceModels devices = test_devices(2);
  const auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
  ASSERT_TRUE(claim) << claim.error().text;
  EXPECT_EQ(claim->shares[0].config, (ShareConfig{-5, "none"}));
  EXPECT_EQ(claim->shares[1].config, (ShareConfig{50, "managed"}));
  object["status"]["allocation"]["devices"]["config"] = {test_config("FromClass", {{"priority", -50}}),
                                                         test_config("FromClaim", {{"priority", 0}})};
  const auto lowered = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
  ASSERT_TRUE(lowered) << lowered.error().text;
  EXPECT_EQ(lowered->shares[0].config.priority, -50);
  object["status"]["allocation"]["devices"]["config"] = {test_config("FromClaim", {{"priority", 1}})};
  EXPECT_NE(refusal(object).find("accepted on this node: an integer from -100 to 0"), std::string::npos);
  EXPECT_EQ(refusal(object, 1, 1), "");
}

TEST(DraClaim, TheClassSaysHowItsClaimsShareAndAClaimShortensNoTurns) {
  Json object = test_claim(1, {{0, "1Gi", "5"}});
  const DeviceModels devices = test_devices(1);
  const auto config_with = [&](const Json& of_class, const Json& of_claim) {
    object["status"]["allocation"]["devices"]["config"] = {test_config("FromClass", of_class), test_config("FromClaim", of_claim)};
    const auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices, 0});
    EXPECT_TRUE(claim) << claim.error().text;
    return claim ? claim->shares[0].config : ShareConfig();
  };
  EXPECT_EQ(config_with({{"sharing", "turns"}, {"turnSeconds", 20}}, {{"sharing", "together"}}), (ShareConfig{{}, "", "turns", 20}));
  EXPECT_EQ(config_with({{"turnSeconds", 20}}, {{"sharing", "together"}}), (ShareConfig{{}, "", "together", 20}));
  EXPECT_EQ(joined_config({{}, "", "", 20}, {{}, "", "", 5}).turn_seconds, 5);
  EXPECT_EQ(joined_config({{}, "", "", 5}, {{}, "", "", 20}).turn_seconds, 5);
  object["status"]["allocation"]["devices"]["config"] = {test_config("FromClaim", {{"turnSeconds", 20}})};
  EXPECT_NE(refusal(object).find("turnSeconds is accepted in a DeviceClass only"), std::string::npos);
}

TEST(DraClaimAllocations, NoSumPassesWhatAGpuHas) {
  ClaimAllocations allocations;
  const DeviceModels devices = test_devices(2);
  ASSERT_TRUE(allocations.admit(prepared(1, {{0, "10Gi", "50"}}), devices));
  const auto memory = allocations.admit(prepared(2, {{1, "1Gi", "1"}, {0, "6145Mi", "1"}}), devices);
  ASSERT_FALSE(memory);
  EXPECT_NE(std::string(memory.error().text)
                .find("GPU 0 (" + test_gpu(0) + ") has 16Gi of memory on offer, of which other claims have 10Gi; 6145Mi do not fit"),
            std::string::npos);
  EXPECT_EQ(allocations.find(test_uid(2)), nullptr);
  const auto cores = allocations.admit(prepared(2, {{0, "1Gi", "26"}, {0, "1Gi", "25"}}), devices);
  ASSERT_FALSE(cores);
  EXPECT_NE(std::string(cores.error().text).find("other claims have 50; 51 do not fit"), std::string::npos);
  EXPECT_TRUE(allocations.admit(prepared(2, {{0, "6Gi", "50"}}), devices));
  EXPECT_FALSE(allocations.admit(prepared(3, {{0, "1Mi", "1"}}), devices));
  allocations.remove(test_uid(1));
  EXPECT_TRUE(allocations.admit(prepared(3, {{0, "10Gi", "50"}}), devices));
}

TEST(DraClaimAllocations, MoreThanAGpuHasIsGivenWhereTheNodeSaysSo) {
  ClaimAllocations allocations;
  const DeviceModels devices = test_devices(1, 16 * kTestGib, 1.5);
  EXPECT_EQ(devices[0].memory, 24 * kTestGib);
  EXPECT_TRUE(allocations.admit(prepared(1, {{0, "16Gi", "50"}}), devices));
  EXPECT_TRUE(allocations.admit(prepared(2, {{0, "8Gi", "50"}}), devices));
  EXPECT_FALSE(allocations.admit(prepared(3, {{0, "1Mi", "1"}}), devices));
}

TEST(DraClaimAllocations, APreparedClaimIsAdmittedAgainOnlyAsItWas) {
  ClaimAllocations allocations;
  const DeviceModels devices = test_devices(1);
  ASSERT_TRUE(allocations.admit(prepared(1, {{0, "16Gi", "100"}}), devices));
  EXPECT_TRUE(allocations.admit(prepared(1, {{0, "16Gi", "100"}}), devices));
  EXPECT_FALSE(allocations.admit(prepared(1, {{0, "15Gi", "100"}}), devices));
}

TEST(DraClaimAllocations, APodHasTheSumOfItsClaimsOnEachGpu) {
  ClaimAllocations allocations;
  const DeviceModels devices = test_devices(2);
  Claim first = prepared(1, {{0, "2Gi", "20"}, {0, "1Gi", "10"}});
  Claim second = prepared(2, {{1, "5Gi", "40"}});
  second.pod_uid = first.pod_uid;
  second.pod = first.pod;
  second.shares[0].config.priority = -7;
  ASSERT_TRUE(allocations.admit(first, devices));
  ASSERT_TRUE(allocations.admit(second, devices));
  const auto limits = allocations.limits_of(first.pod_uid);
  EXPECT_EQ(limits.name, "team/pod-1");
  EXPECT_EQ(limits.gpu_memory_on, (std::map<std::string, int64_t>{{test_gpu(0), 3 * kTestGib}, {test_gpu(1), 5 * kTestGib}}));
  EXPECT_EQ(limits.gpu_memory_limit, 5 * kTestGib);
  EXPECT_EQ(limits.gpu_core_limit, 30);
  EXPECT_EQ(limits.gpu_core_reserved, 30);
  EXPECT_EQ(limits.priority, -7);
  EXPECT_FALSE(limits.gone);
  EXPECT_EQ(allocations.first_pods().size(), 1U);
  allocations.remove(first.uid);
  allocations.remove(second.uid);
  EXPECT_TRUE(allocations.limits_of(first.pod_uid).gone);
}

TEST(DraClaimAllocations, APodTakesTurnsWhereOneOfItsSharesDoesAndTheShortest) {
  ClaimAllocations allocations;
  const DeviceModels devices = test_devices(2);
  Claim first = prepared(1, {{0, "2Gi", "20"}, {0, "1Gi", "10"}});
  Claim second = prepared(2, {{1, "5Gi", "40"}});
  second.pod_uid = first.pod_uid;
  first.shares[0].config = {{}, "", "turns", 30};
  first.shares[1].config = {{}, "", "together", 0};
  second.shares[0].config = {{}, "", "node", 10};
  ASSERT_TRUE(allocations.admit(first, devices));
  ASSERT_TRUE(allocations.admit(second, devices));
  EXPECT_EQ(allocations.limits_of(first.pod_uid).sharing, "turns");
  EXPECT_EQ(allocations.limits_of(first.pod_uid).turn_seconds, 10);
  allocations.remove(first.uid);
  EXPECT_EQ(allocations.limits_of(first.pod_uid).sharing, "node");
}

TEST(DraClaimCdi, EachShareIsADeviceOfItsOwnAndNoLimitIsAVariable) {
  Claim claim = prepared(1, {{0, "2Gi", "20"}, {0, "1Gi", "10"}});
  claim.shares[1].config.memory_backend = "managed";
  const Json spec = Json::parse(cdi_spec_of(claim, {{"/in/lib.so", "/host/lib.so"}}));
  EXPECT_EQ(spec["kind"], kCdiClaimKind);
  ASSERT_EQ(spec["devices"].size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<std::string> ids = cdi_ids_of(claim, claim.shares[i]);
    EXPECT_EQ(ids[0], "nvshare.com/claim=" + spec["devices"][i]["name"].get<std::string>());
    EXPECT_EQ(ids[1], "nvidia.com/gpu=" + test_gpu(0));
  }
  EXPECT_NE(spec["devices"][0]["name"], spec["devices"][1]["name"]);
  EXPECT_EQ(spec["devices"][0]["containerEdits"]["env"], Json({"NVIDIA_VISIBLE_DEVICES=void"}));
  EXPECT_EQ(spec["devices"][1]["containerEdits"]["env"], Json({"NVIDIA_VISIBLE_DEVICES=void", "NVSHARE_MEMORY_BACKEND=managed"}));
  EXPECT_EQ(spec["containerEdits"]["mounts"][0]["hostPath"], "/host/lib.so");
  EXPECT_EQ(spec.dump().find("LIMIT"), std::string::npos);
}

TEST(DraClaimCdi, FilesOfClaimsThatAreNotPreparedAreRemovedAndNoOthers) {
  std::string folder = (std::filesystem::temp_directory_path() / "nvshare-dra-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_TRUE(write_file_atomically(cdi_file_of(folder, test_uid(1)), "{}"));
  ASSERT_TRUE(write_file_atomically(cdi_file_of(folder, test_uid(2)), "{}"));
  ASSERT_TRUE(write_file_atomically(folder + "/nvshare.com-gpu.json", "{}"));
  ASSERT_TRUE(remove_other_claims(folder, {{test_uid(2), Claim()}}));
  EXPECT_FALSE(std::filesystem::exists(cdi_file_of(folder, test_uid(1))));
  EXPECT_TRUE(std::filesystem::exists(cdi_file_of(folder, test_uid(2))));
  EXPECT_TRUE(std::filesystem::exists(folder + "/nvshare.com-gpu.json"));
  EXPECT_TRUE(remove_other_claims(folder + "/none", {}));
  std::filesystem::remove_all(folder);
}

TEST(DraClaim, ParametersThatNestDeepAreRefusedBeforeTheyAreRead) {
  const DeviceModels devices = test_devices(1);
  Json claim = test_claim(1, {{}});
  claim["status"]["allocation"]["devices"]["config"].push_back(test_config("FromClaim", {{"priority", "HERE"}}));
  std::string text = claim.dump();
  const std::string brackets = std::string(200'000, '[') + std::string(200'000, ']');
  text.replace(text.find("\"HERE\""), 6, brackets);
  EXPECT_FALSE(read_claim(text, test_claim_name(1), {kTestNode, devices, 0}));
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
