#include "kubernetes/dra/share_config.h"

#include <algorithm>

#include "protocol/admin.h"

namespace nvshare::kubernetes::dra {
namespace {

std::string shown(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }

Result<void> take_priority(const Json& value, int priority_max, ShareConfig* config) {
  const int64_t priority = integer_of(Json{{"priority", value}}, "priority", INT64_MAX);
  if (priority < protocol::admin::kPriorityMin || priority > priority_max) {
    return error_format("%s: priority is %.40s; accepted on this node: an integer from %d to %d", kConfigKind, shown(value).c_str(),
                        protocol::admin::kPriorityMin, priority_max);
  }
  config->priority = static_cast<int>(priority);
  return {};
}

Result<void> take_backend(const Json& value, ShareConfig* config) {
  const std::string backend = value.is_string() ? value.get<std::string>() : "";
  if (backend != "vmm" && backend != "managed" && backend != "none") {
    return error_format("%s: memoryBackend is %.40s; accepted: \"vmm\", \"managed\", \"none\"", kConfigKind, shown(value).c_str());
  }
  config->memory_backend = backend;
  return {};
}

Result<void> take_sharing(const Json& value, ShareConfig* config) {
  const std::string sharing = value.is_string() ? value.get<std::string>() : "";
  if (!protocol::admin::is_sharing_word(sharing)) {
    return error_format("%s: sharing is %.40s; accepted: \"node\", \"together\", \"turns\", \"auto\"", kConfigKind, shown(value).c_str());
  }
  config->sharing = sharing;
  return {};
}

Result<void> take_turn_seconds(const Json& value, bool is_class, ShareConfig* config) {
  if (!is_class) {
    return error_format("%s: turnSeconds is accepted in a DeviceClass only: shorter turns cost the neighbours more swaps", kConfigKind);
  }
  const int64_t seconds = integer_of(Json{{"turnSeconds", value}}, "turnSeconds", 0);
  if (seconds < 1 || seconds > protocol::admin::kTurnSecondsMax) {
    return error_format("%s: turnSeconds is %.40s; accepted: an integer from 1 to %d", kConfigKind, shown(value).c_str(),
                        protocol::admin::kTurnSecondsMax);
  }
  config->turn_seconds = static_cast<int>(seconds);
  return {};
}

Result<void> take_field(const std::string& name, const Json& value, const ConfigSource& source, ShareConfig* config) {
  if (name == "priority") return take_priority(value, source.priority_max, config);
  if (name == "memoryBackend") return take_backend(value, config);
  if (name == "sharing") return take_sharing(value, config);
  if (name == "turnSeconds") return take_turn_seconds(value, source.is_class, config);
  if (name == "mpsGroup") {
    return error_format("%s has no field 'mpsGroup': MPS is not for pods; accepted: priority, memoryBackend, sharing, turnSeconds",
                        kConfigKind);
  }
  return error_format("%s has no field '%.60s'; accepted: priority, memoryBackend, sharing, turnSeconds", kConfigKind, name.c_str());
}

}  // namespace

Result<ShareConfig> parse_share_config(const Json& parameters, const ConfigSource& source) {
  if (!parameters.is_object()) return error_format("the driver's parameters must be an object of kind %s", kConfigKind);
  if (text_of(parameters, "apiVersion") != kConfigVersion || text_of(parameters, "kind") != kConfigKind) {
    return error_format("the driver's parameters are of '%.60s', kind '%.60s'; accepted: %s, kind %s",
                        text_of(parameters, "apiVersion").c_str(), text_of(parameters, "kind").c_str(), kConfigVersion, kConfigKind);
  }
  ShareConfig config;
  for (const auto& [name, value] : parameters.items()) {
    if (name == "apiVersion" || name == "kind") continue;
    if (auto taken = take_field(name, value, source, &config); !taken) return taken.error();
  }
  return config;
}

ShareConfig joined_config(const ShareConfig& earlier, const ShareConfig& later) {
  ShareConfig joined = later;
  if (joined.memory_backend.empty()) joined.memory_backend = earlier.memory_backend;
  if (!joined.priority || (earlier.priority && *earlier.priority < *joined.priority)) joined.priority = earlier.priority;
  if (!earlier.sharing.empty()) joined.sharing = earlier.sharing;
  if (joined.turn_seconds == 0 || (earlier.turn_seconds > 0 && earlier.turn_seconds < joined.turn_seconds)) {
    joined.turn_seconds = earlier.turn_seconds;
  }
  return joined;
}

}  // namespace nvshare::kubernetes::dra
