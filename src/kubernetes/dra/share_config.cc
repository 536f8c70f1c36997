#include "kubernetes/dra/share_config.h"

#include <algorithm>

#include "protocol/admin.h"

namespace nvshare::kubernetes::dra {
namespace {

Result<void> take_priority(const Json& value, int priority_max, ShareConfig* config) {
  const int64_t priority = integer_of(Json{{"priority", value}}, "priority", INT64_MAX);
  if (priority < protocol::admin::kPriorityMin || priority > priority_max) {
    return error_format("%s: priority is %.40s; accepted on this node: an integer from %d to %d", kConfigKind, value.dump().c_str(),
                        protocol::admin::kPriorityMin, priority_max);
  }
  config->priority = static_cast<int>(priority);
  return {};
}

Result<void> take_backend(const Json& value, ShareConfig* config) {
  const std::string backend = value.is_string() ? value.get<std::string>() : "";
  if (backend != "vmm" && backend != "managed" && backend != "none") {
    return error_format("%s: memoryBackend is %.40s; accepted: \"vmm\", \"managed\", \"none\"", kConfigKind,
                        value.dump(-1, ' ', true, Json::error_handler_t::replace).c_str());
  }
  config->memory_backend = backend;
  return {};
}

}  // namespace

Result<ShareConfig> parse_share_config(const Json& parameters, int priority_max) {
  if (!parameters.is_object()) return error_format("the driver's parameters must be an object of kind %s", kConfigKind);
  if (text_of(parameters, "apiVersion") != kConfigVersion || text_of(parameters, "kind") != kConfigKind) {
    return error_format("the driver's parameters are of '%.60s', kind '%.60s'; accepted: %s, kind %s",
                        text_of(parameters, "apiVersion").c_str(), text_of(parameters, "kind").c_str(), kConfigVersion, kConfigKind);
  }
  ShareConfig config;
  for (const auto& [name, value] : parameters.items()) {
    if (name == "apiVersion" || name == "kind") continue;
    Result<void> taken =
        name == "priority" ? take_priority(value, priority_max, &config)
        : name == "memoryBackend"
            ? take_backend(value, &config)
            : Result<void>(error_format("%s has no field '%.60s'; accepted: priority, memoryBackend", kConfigKind, name.c_str()));
    if (!taken) return taken.error();
  }
  return config;
}

ShareConfig joined_config(const ShareConfig& earlier, const ShareConfig& later) {
  ShareConfig joined = later;
  if (joined.memory_backend.empty()) joined.memory_backend = earlier.memory_backend;
  if (!joined.priority || (earlier.priority && *earlier.priority < *joined.priority)) joined.priority = earlier.priority;
  return joined;
}

}  // namespace nvshare::kubernetes::dra
