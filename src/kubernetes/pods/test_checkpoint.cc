#include "kubernetes/pods/test_checkpoint.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "kubernetes/pods/checkpoint.h"

namespace nvshare::kubernetes {
namespace {

// As Go writes bytes in JSON.
std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = 0;
    for (size_t j = i; j < i + 3; ++j) group = group << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

}  // namespace

std::string checkpoint_text(const std::vector<CheckpointEntry>& entries, CheckpointLayout layout,
                            const std::map<std::string, std::set<std::string>>& registered) {
  using Json = nlohmann::ordered_json;
  Json list;  // null where there is none, as Go writes a slice that nobody made
  for (const CheckpointEntry& entry : entries) {
    Json devices = entry.ids;
    if (layout == CheckpointLayout::kByNumaNode) devices = Json{{std::to_string(entry.numa_node), entry.ids}};
    list.push_back({{"PodUID", entry.uid},
                    {"ContainerName", entry.container},
                    {"ResourceName", entry.resource},
                    {"DeviceIDs", devices},
                    {"AllocResp", base64(entry.response)}});
  }
  const std::string data = Json{{"PodDeviceEntries", list}, {"RegisteredDevices", registered}}.dump();
  return "{\"Data\":" + data + ",\"Checksum\":" + std::to_string(std::hash<std::string>()(data) & 0xffffffffU) + "}";
}

void write_checkpoint(const std::string& folder, const std::string& text) {
  const std::string draft = folder + "/." + kCheckpointName + "1234567";
  std::ofstream(draft) << text;
  std::filesystem::permissions(draft, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::rename(draft, folder + "/" + kCheckpointName);
}

}  // namespace nvshare::kubernetes
