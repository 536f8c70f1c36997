// The layouts of driver.h, for comparison with the real cuda.h, which cannot be included beside it.
#pragma once

#include <cstddef>
#include <span>

namespace simgpu_testing {

struct Layout {
  const char* what;
  size_t bytes;
};
std::span<const Layout> our_layouts();

}  // namespace simgpu_testing
