#include "kubernetes/pods/pod_answers.h"

#include <nlohmann/json.hpp>

#include "base/json_nesting.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;

constexpr size_t kEventMax = 16u << 20;  // one pod is at most 1.5 MB in the API server's store
constexpr size_t kErrorShownMax = 150;   // bytes of what somebody else wrote

std::string text_in(const Json& json, const char* field) {
  const auto found = json.is_object() ? json.find(field) : json.end();
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string version_of(const Json& object) {
  const auto metadata = object.is_object() ? object.find("metadata") : object.end();
  return object.is_object() && metadata != object.end() ? text_in(*metadata, "resourceVersion") : std::string();
}

Json parsed(std::string_view text) { return nests_too_deep(text) ? Json() : Json::parse(text, nullptr, false); }

}  // namespace

Result<PodList> read_pod_list(std::string_view body) {
  const Json json = parsed(body);
  PodList list;
  list.version = version_of(json);
  const auto items = json.is_object() ? json.find("items") : json.end();
  if (list.version.empty() || items == json.end() || !items->is_array()) return error_format("what came is no list of pods");
  for (const Json& item : *items) list.pods.push_back(item.dump());
  return list;
}

bool PodEvents::take(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() > kEventMax) {
      failed_ = "an event of a watch is longer than 16 MiB";
      return false;
    }
    if (end == std::string_view::npos) return true;
    if (!take_line()) return false;
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
  return !failed_;
}

bool PodEvents::take_line() {
  if (line_.empty()) return true;
  const Json event = parsed(line_);
  const std::string type = text_in(event, "type");
  if (type.empty() || !event.contains("object")) {
    failed_ = "what came is no event of a watch";
    return false;
  }
  const Json& object = event["object"];
  if (type == "ERROR") {
    // Too old a version comes as 410; whatever else it is, a list mends it.
    failed_ = "the API server ended the watch: " + object.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kErrorShownMax);
    return false;
  }
  heard_ = true;
  if (type == "ADDED" || type == "MODIFIED") {
    listener_.changed(object.dump());
  } else if (type == "DELETED") {
    listener_.deleted(object.dump());
  }
  if (std::string version = version_of(object); !version.empty()) version_ = std::move(version);
  return true;
}

}  // namespace nvshare::kubernetes
