#include "kubernetes/namespace_maxima.h"

#include <algorithm>
#include <utility>

#include "base/parse.h"
#include "base/settings_table.h"

namespace nvshare::kubernetes {
namespace {

using settings::shown;

constexpr size_t kNameMax = 63;  // of a namespace

bool is_namespace(std::string_view text) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return text == "*" || (!text.empty() && text.size() <= kNameMax && text.front() != '-' && text.back() != '-' &&
                         std::all_of(text.begin(), text.end(), good));
}

// What comes before the separator; the text is then what comes after it.
std::string_view take_part(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

Result<NamespaceMaximum> parse_maximum(std::string_view text) {
  NamespaceMaximum maximum;
  bool named[2] = {};
  if (text.empty()) return error_format("a namespace without gpu-memory= or gpu-core=");
  while (!text.empty()) {
    std::string_view value = take_part(&text, ',');
    const std::string_view name = take_part(&value, '=');
    if (std::exchange(named[name == "gpu-core" ? 1 : 0], true)) return error_format("'%.*s' is there twice", shown(name), name.data());
    if (name == "gpu-memory") {
      Result<int64_t> bytes = parse_pod_memory(value);
      if (!bytes) return error_format("gpu-memory '%.*s': %s", shown(value), value.data(), bytes.error().text);
      maximum.memory = *bytes;
    } else if (name == "gpu-core") {
      Result<int64_t> percent = parse_integer(value, 1, 100);
      if (!percent) return error_format("gpu-core '%.*s': accepted: an integer from 1 to 100", shown(value), value.data());
      maximum.core = static_cast<int>(*percent);
    } else {
      return error_format("'%.*s' is neither gpu-memory=16Gi nor gpu-core=50", shown(name), name.data());
    }
  }
  return maximum;
}

}  // namespace

Result<int64_t> parse_pod_memory(std::string_view text) {
  const bool unit = text.size() > 2 && (text.ends_with("Mi") || text.ends_with("Gi") || text.ends_with("Ti"));
  Result<uint64_t> bytes = unit ? parse_bytes(text) : Result<uint64_t>(error_format("it has no unit"));
  if (!bytes || *bytes < (1U << 20) || *bytes > (1ULL << 50)) {
    return error_format("accepted: from 1Mi to 1024Ti, with Mi, Gi or Ti, such as 8Gi");
  }
  return static_cast<int64_t>(*bytes);
}

Result<NamespaceMaxima> parse_namespace_maxima(std::string_view text) {
  NamespaceMaxima maxima;
  if (text == "none") return maxima;
  if (text.empty()) return error_format("it is empty");
  while (!text.empty()) {
    std::string_view values = take_part(&text, ';');
    const std::string_view name = take_part(&values, ':');
    if (!is_namespace(name)) return error_format("'%.*s' is no name of a namespace, and not *", shown(name), name.data());
    Result<NamespaceMaximum> maximum = parse_maximum(values);
    if (!maximum) return error_format("%.*s: %s", shown(name), name.data(), maximum.error().text);
    if (!maxima.emplace(name, *maximum).second) return error_format("%.*s is named twice", shown(name), name.data());
  }
  return maxima;
}

NamespaceMaximum maximum_of(const NamespaceMaxima& maxima, std::string_view name_space) {
  auto found = maxima.find(name_space);
  if (found == maxima.end()) found = maxima.find("*");
  return found == maxima.end() ? NamespaceMaximum{} : found->second;
}

void lower_to(const NamespaceMaximum& maximum, protocol::admin::PodRequest* pod) {
  if (maximum.memory != 0 && (pod->gpu_memory_limit == 0 || pod->gpu_memory_limit > maximum.memory)) {
    pod->gpu_memory_limit = maximum.memory;
    std::erase_if(pod->gpu_memory_on, [&](const auto& entry) { return entry.second >= maximum.memory; });  // says no more than the limit
  }
  pod->gpu_core_limit = std::min(pod->gpu_core_limit, maximum.core);
  pod->gpu_core_reserved = std::min(pod->gpu_core_reserved, pod->gpu_core_limit);
}

}  // namespace nvshare::kubernetes
