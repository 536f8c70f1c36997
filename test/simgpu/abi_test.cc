// The structs of driver.h against the real cuda.h, where that is installed.
#include <gtest/gtest.h>

#include "simgpu/abi_layouts.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define SIM_CUDA_H 1
#endif

namespace simgpu_testing {
namespace {

TEST(Abi, LayoutsAreTheDrivers) {
#ifdef SIM_CUDA_H
  constexpr Layout kReal[] = {
#define SIM_SIZE(type) {#type, sizeof(type)},
#define SIM_OFFSET(type, member) {#type "." #member, offsetof(type, member)},
#include "simgpu/abi_layouts.inc"
#undef SIM_SIZE
#undef SIM_OFFSET
  };
  ASSERT_EQ(std::size(kReal), our_layouts().size());
  for (size_t i = 0; i < std::size(kReal); ++i) EXPECT_EQ(kReal[i].bytes, our_layouts()[i].bytes) << kReal[i].what;
#else
  GTEST_SKIP() << "no cuda.h here";
#endif
}

}  // namespace
}  // namespace simgpu_testing
