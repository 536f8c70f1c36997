// Claims and devices for tests: ResourceClaims as the API server has them once they are allocated.
#pragma once

#include <string>
#include <vector>

#include "kubernetes/dra/claim.h"
#include "kubernetes/dra/device_model.h"

namespace nvshare::kubernetes::dra {

inline constexpr int64_t kTestGib = int64_t{1} << 30;
inline constexpr char kTestNode[] = "node-1";

inline std::string test_gpu(int number) { return "GPU-0000000" + std::to_string(number) + "-0000-4000-8000-00000000000A"; }

inline DeviceModels test_devices(int count, int64_t memory = 16 * kTestGib, double ratio = 1) {
  Division division;
  division.oversubscription = ratio;
  DeviceModels devices;
  for (int i = 0; i < count; ++i) {
    auto model = model_of({{test_gpu(i), memory, true, -1, i}, "Stand-in", "Hopper", "535.183.01", "12.4", "pci0000:00", ""}, division);
    if (model) devices.push_back(std::move(*model));
  }
  return devices;
}

inline std::string test_uid(int number) {
  std::string digits = std::to_string(number);
  return "0b4e0000-0000-4000-8000-" + std::string(12 - digits.size(), '0') + digits;
}

inline ClaimName test_claim_name(int number) { return {"team", "claim-" + std::to_string(number), test_uid(number)}; }

struct TestPart {
  int gpu = 0;
  std::string memory = "4Gi", cores = "25", request = "main";
};

// Claim `number`, reserved for the pod of that number, shareIDs by `number` and place.
inline Json test_claim(int number, const std::vector<TestPart>& parts) {
  Json results = Json::array();
  for (size_t i = 0; i < parts.size(); ++i) {
    results.push_back({{"request", parts[i].request},
                       {"driver", kDriverName},
                       {"pool", kTestNode},
                       {"device", device_name(test_gpu(parts[i].gpu))},
                       {"shareID", test_uid(number * 100 + static_cast<int>(i))},
                       {"consumedCapacity", {{"memory", parts[i].memory}, {"cores", parts[i].cores}}}});
  }
  const ClaimName name = test_claim_name(number);
  return {{"metadata", {{"namespace", name.name_space}, {"name", name.name}, {"uid", name.uid}}},
          {"status",
           {{"allocation", {{"devices", {{"results", std::move(results)}, {"config", Json::array()}}}}},
            {"reservedFor", {{{"resource", "pods"}, {"name", "pod-" + std::to_string(number)}, {"uid", test_uid(900000 + number)}}}}}}};
}

// A pod of the node that uses these claims by name. UID as that of the claim of its number.
inline Json test_pod(int number, const std::vector<std::string>& claims, const std::string& phase = "Running") {
  Json uses = Json::array();
  for (const std::string& claim : claims) uses.push_back({{"name", claim}, {"resourceClaimName", claim}});
  return {{"metadata",
           {{"namespace", "team"},
            {"name", "pod-" + std::to_string(number)},
            {"uid", test_uid(900000 + number)},
            {"annotations", Json::object()}}},
          {"spec", {{"nodeName", kTestNode}, {"resourceClaims", std::move(uses)}, {"containers", Json::array()}}},
          {"status", {{"phase", phase}}}};
}

inline Json test_config(const char* source, const Json& fields, const Json& requests = Json::array()) {
  Json parameters = {{"apiVersion", kConfigVersion}, {"kind", kConfigKind}};
  parameters.update(fields);
  return {{"source", source}, {"requests", requests}, {"opaque", {{"driver", kDriverName}, {"parameters", std::move(parameters)}}}};
}

}  // namespace nvshare::kubernetes::dra
