// A GPU as lines of the log name it: "0 (GPU-1a2b3c4d)". The number is CUDA's in this program, which CUDA_VISIBLE_DEVICES changes; how the
// UUID begins says which GPU of the machine that is.
#pragma once

#include <cstdio>

namespace nvshare::interposer {

class GpuName {
 public:
  explicit GpuName(int ordinal) : ordinal_(ordinal) { snprintf(text_, sizeof text_, "%d", ordinal); }

  // Before other threads see it.
  void set_uuid(const char (&bytes)[16]) {
    const auto byte = [&bytes](int i) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[i])); };
    snprintf(text_, sizeof text_, "%d (GPU-%02x%02x%02x%02x)", ordinal_, byte(0), byte(1), byte(2), byte(3));
  }
  const char* text() const { return text_; }

 private:
  const int ordinal_;
  char text_[32];
};

}  // namespace nvshare::interposer
