#include "kubernetes/dra/claim_cdi.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kCdiSpecVersion[] = "0.5.0";
constexpr std::string_view kFilePrefix = "nvshare.com-claim-";
constexpr std::string_view kFileSuffix = ".json";

std::string cdi_name_of(const Claim& claim, const Share& share) { return claim.uid + "_" + share.id; }

}  // namespace

bool has_cdi_spec(const Claim& claim) {
  return std::any_of(claim.shares.begin(), claim.shares.end(), [](const Share& share) { return !share.admin; });
}

std::vector<std::string> cdi_ids_of(const Claim& claim, const Share& share) {
  if (share.admin) return {"nvidia.com/gpu=" + share.gpu};
  return {std::string(kCdiClaimKind) + "=" + cdi_name_of(claim, share), "nvidia.com/gpu=" + share.gpu};
}

std::string cdi_spec_of(const Claim& claim, const std::vector<Mount>& mounts) {
  Json devices = Json::array();
  for (const Share& share : claim.shares) {
    if (share.admin) continue;
    // NVIDIA's runtime would otherwise show whatever GPUs the image's variable names.
    Json variables = Json::array({"NVIDIA_VISIBLE_DEVICES=void"});
    if (!share.config.memory_backend.empty()) variables.push_back("NVSHARE_MEMORY_BACKEND=" + share.config.memory_backend);
    devices.push_back({{"name", cdi_name_of(claim, share)}, {"containerEdits", {{"env", std::move(variables)}}}});
  }
  Json bound = Json::array();
  for (const Mount& mount : mounts) {
    bound.push_back(
        {{"hostPath", mount.host_path}, {"containerPath", mount.container_path}, {"options", {"ro", "nosuid", "nodev", "bind"}}});
  }
  const Json spec = {{"cdiVersion", kCdiSpecVersion},
                     {"kind", kCdiClaimKind},
                     {"devices", std::move(devices)},
                     {"containerEdits", {{"mounts", std::move(bound)}}}};
  return spec.dump(1) + "\n";
}

std::string cdi_file_of(const std::string& cdi_dir, const std::string& claim_uid) {
  return cdi_dir + "/" + std::string(kFilePrefix) + claim_uid + std::string(kFileSuffix);
}

Result<void> remove_other_claims(const std::string& cdi_dir, const std::map<std::string, Claim>& prepared) {
  std::error_code problem;
  std::vector<std::filesystem::path> others;
  for (std::filesystem::directory_iterator file(cdi_dir, problem), end; !problem && file != end; file.increment(problem)) {
    const std::string name = file->path().filename().string();
    if (!name.starts_with(kFilePrefix) || !name.ends_with(kFileSuffix)) continue;
    const std::string uid = name.substr(kFilePrefix.size(), name.size() - kFilePrefix.size() - kFileSuffix.size());
    if (!prepared.contains(uid)) others.push_back(file->path());
  }
  if (problem == std::errc::no_such_file_or_directory) return {};
  for (const auto& path : others) {
    std::error_code failed;
    std::filesystem::remove(path, failed);
    if (failed) problem = failed;
  }
  if (problem) return error_format("cannot remove old specifications in %.150s: %.60s", cdi_dir.c_str(), problem.message().c_str());
  return {};
}

}  // namespace nvshare::kubernetes::dra
