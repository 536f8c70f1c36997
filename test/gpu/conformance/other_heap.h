// A driver may use what it has freed. Natively that shows only where the program's own memory has come to lie there meanwhile; under the
// library, whose allocations are others, it may show at once.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace conformance {

// Takes the place of what was freed lately, for as long as the object lives: a block of each small size, all zeros.
class OtherHeap {
 public:
  void take() {
    for (size_t size = kStep; size < kSizeEnd; size += kStep) {
      blocks_.emplace_back(std::malloc(size), &std::free);  // calloc would not take what malloc keeps at hand
      if (blocks_.back() != nullptr) {
        std::memset(blocks_.back().get(), 0, size);
      }
    }
  }

 private:
  static constexpr size_t kStep = 16, kSizeEnd = 2000;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> blocks_;
};

}  // namespace conformance
