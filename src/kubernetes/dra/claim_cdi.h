// CDI specifications of prepared claims: a file for each claim, in it a device for each share. Names have the claim's UID and the share's
// ID and are never used again. Pure functions but for the folder's files.
//
// A share's GPU itself comes by NVIDIA's specification (`nvidia-ctk cdi generate`), whose device has the GPU's UUID as its name: edits of
// two shares in one container must not set the same variable to different values, as NVIDIA_VISIBLE_DEVICES would be.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/container_edits.h"
#include "kubernetes/dra/claim.h"

namespace nvshare::kubernetes::dra {

inline constexpr char kCdiClaimKind[] = "nvshare.com/claim";

// Whether the claim needs a specification of ours: not for admin access alone, whose containers see the GPU as it is.
bool has_cdi_spec(const Claim& claim);

// For the kubelet's answer: our device and NVIDIA's; with admin access NVIDIA's alone.
std::vector<std::string> cdi_ids_of(const Claim& claim, const Share& share);

// `mounts`: of library, preload file and the scheduler's folder.
std::string cdi_spec_of(const Claim& claim, const std::vector<Mount>& mounts);

std::string cdi_file_of(const std::string& cdi_dir, const std::string& claim_uid);

// Removes the files of claims that are not prepared any more: a driver that ended between two steps left them.
Result<void> remove_other_claims(const std::string& cdi_dir, const std::map<std::string, Claim>& prepared);

}  // namespace nvshare::kubernetes::dra
