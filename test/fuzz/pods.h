// For the targets that end in limits of pods: what the plugin sends must be what the scheduler takes, or no pod's limits get there.
#pragma once

#include <algorithm>

#include "fuzz.h"
#include "kubernetes/pods/pod_limits.h"
#include "protocol/admin.h"

namespace nvshare::fuzz {

inline void require_sendable(const std::vector<protocol::admin::PodRequest>& pods) {
  using namespace protocol::admin;
  if (pods.empty()) return;
  const size_t count = std::min(pods.size(), kPodsMax);
  const PodsRequest request{{pods.begin(), pods.begin() + static_cast<ptrdiff_t>(count)}, false};
  const std::string line = encode(request);
  require(line.find('\n') == line.size() - 1, "a request is one line");
  const auto decoded = decode_request(line);
  if (!good(decoded)) std::fprintf(stderr, "%s\n", decoded.error().text);
  require(static_cast<bool>(decoded), "the scheduler takes the limits of pods");
  const auto* there = std::get_if<PodsRequest>(&*decoded);
  require(there != nullptr && there->pods.size() == count, "the scheduler takes all of them");
  for (size_t i = 0; i < count; ++i) {
    const PodRequest& said = pods[i];
    const PodRequest& heard = there->pods[i];
    require(said.uid == heard.uid && said.gone == heard.gone, "the scheduler takes them for the same pods");
    if (said.gone) continue;
    require(said.gpu_memory_limit == heard.gpu_memory_limit && said.gpu_core_limit == heard.gpu_core_limit &&
                said.gpu_core_reserved == heard.gpu_core_reserved && said.priority == heard.priority &&
                said.gpu_memory_on == heard.gpu_memory_on && said.only_lowers == heard.only_lowers && said.member_of == heard.member_of,
            "the scheduler takes the same limits");
  }
}

inline kubernetes::ResourceNames resource_names() {
  kubernetes::ResourceNames names;
  names.gpu = "nvshare.com/gpu";
  names.memory = "nvshare.com/gpu-memory";
  names.core = "nvshare.com/gpu-core";
  names.division.default_memory = int64_t{1} << 30;
  return names;
}

}  // namespace nvshare::fuzz
