// Writes a kubelet's checkpoint for tests, as a kubelet does: another file in the same folder, renamed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace nvshare::kubernetes {

struct CheckpointEntry {
  std::string uid, container, resource;
  std::set<std::string> ids;
  int numa_node = -1;
  std::string response;  // of Allocate, as bytes
};

enum class CheckpointLayout { kByNumaNode, kList };  // of today, and before Kubernetes 1.20

std::string checkpoint_text(const std::vector<CheckpointEntry>& entries, CheckpointLayout layout = CheckpointLayout::kByNumaNode,
                            const std::map<std::string, std::set<std::string>>& registered = {});
void write_checkpoint(const std::string& folder, const std::string& text);

}  // namespace nvshare::kubernetes
