#include "simgpu/visible.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace simgpu {
namespace {

constexpr int kNone = -1;

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t comma = list.find(',');
    std::string_view word = list.substr(0, comma);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    words.push_back(word);
    if (comma == std::string_view::npos) return words;
    list.remove_prefix(comma + 1);
  }
}

int number_of(std::string_view word) {
  int number = kNone;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() && number >= 0 ? number : kNone;
}

// The one among `candidates` whose UUID begins so.
int by_uuid(std::string_view beginning, const std::vector<int>& candidates, const std::vector<Uuid>& uuids) {
  int found = kNone;
  if (!beginning.starts_with("GPU-")) return kNone;
  for (const int device : candidates) {
    if (!to_text(uuids[static_cast<size_t>(device)]).starts_with(beginning)) continue;
    if (found != kNone) return kNone;
    found = device;
  }
  return found;
}

std::vector<int> all_of(size_t count) {
  std::vector<int> devices(count);
  for (size_t i = 0; i < count; ++i) devices[i] = static_cast<int>(i);
  return devices;
}

}  // namespace

std::string to_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", uuid.bytes[i]);
    text += hex;
  }
  return text;
}

std::vector<int> given_by_runtime(std::string_view list, const std::vector<Uuid>& uuids) {
  std::vector<int> all = all_of(uuids.size());
  if (list.empty() || list == "void" || list == "all") return all;
  if (list == "none") return {};
  std::vector<int> given;
  for (const std::string_view word : split(list)) {
    const int number = number_of(word);
    int device = number < static_cast<int>(uuids.size()) ? number : kNone;
    if (device == kNone) device = word.starts_with("MIG-") && !uuids.empty() ? kMigParent : by_uuid(word, all, uuids);
    if (device != kNone && std::find(given.begin(), given.end(), device) == given.end()) given.push_back(device);
  }
  std::sort(given.begin(), given.end());
  return given;
}

std::vector<int> chosen_by_program(const char* list, const std::vector<int>& given, const std::vector<Uuid>& uuids) {
  if (list == nullptr) return given;
  std::vector<int> chosen;
  for (const std::string_view word : split(list)) {
    const int number = number_of(word);
    int device = kNone;
    if (number != kNone) {
      if (static_cast<size_t>(number) < given.size()) device = given[static_cast<size_t>(number)];
    } else {
      device = by_uuid(word, given, uuids);
    }
    if (device == kNone) break;
    if (std::find(chosen.begin(), chosen.end(), device) != chosen.end()) return {};
    chosen.push_back(device);
  }
  return chosen;
}

}  // namespace simgpu
