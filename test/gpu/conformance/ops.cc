#include "ops.h"

#include <string>
#include <unordered_map>

namespace conformance {

extern const std::vector<Op> kMemoryOps, kCopyOps, kObjectOps, kGraphOps, kRareOps, kPartnerOps;

namespace {

std::vector<Op> join() {
  std::vector<Op> all;
  for (const std::vector<Op>* part : {&kMemoryOps, &kCopyOps, &kObjectOps, &kGraphOps, &kRareOps, &kPartnerOps}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

}  // namespace

const std::vector<Op>& ops() {
  static const std::vector<Op> all = join();
  return all;
}

int op_of(std::string_view symbol) {
  static const auto table = [] {
    std::unordered_map<std::string_view, int> map;
    for (size_t i = 0; i < ops().size(); ++i) {
      map.emplace(ops()[i].symbol, static_cast<int>(i));
    }
    return map;
  }();
  const auto found = table.find(symbol);
  return found == table.end() ? -1 : found->second;
}

}  // namespace conformance
