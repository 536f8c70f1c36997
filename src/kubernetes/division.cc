#include "kubernetes/division.h"

namespace nvshare::kubernetes {

Division with_unit(Division division, int64_t memory_unit) {
  division.memory_unit = memory_unit;
  return division;
}

bool is_possible_unit(int64_t bytes) { return bytes >= 1 << 20 && bytes <= int64_t{1} << 40; }

}  // namespace nvshare::kubernetes
