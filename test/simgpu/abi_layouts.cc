#include "simgpu/abi_layouts.h"

#include "simgpu/driver.h"

namespace simgpu_testing {

using namespace nvshare::cuda;

std::span<const Layout> our_layouts() {
  static constexpr Layout kLayouts[] = {
#define SIM_SIZE(type) {#type, sizeof(type)},
#define SIM_OFFSET(type, member) {#type "." #member, offsetof(type, member)},
#include "simgpu/abi_layouts.inc"
#undef SIM_SIZE
#undef SIM_OFFSET
  };
  return kLayouts;
}

}  // namespace simgpu_testing
