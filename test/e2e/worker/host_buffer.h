// Memory of the host for what must be in a block. What one buffer leaves the next one takes: on a virtual machine the first touch of a page
// costs more than to fill it, and sanitizers set up shadows for all memory that a program maps. They do not know this memory.
#pragma once

#include <cstddef>
#include <utility>

namespace nvshare::e2e {

class HostBuffer {
 public:
  explicit HostBuffer(size_t bytes);  // with anything in it; ends the program where there is no memory
  HostBuffer(HostBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), capacity_(other.capacity_) {}
  HostBuffer& operator=(HostBuffer&&) = delete;
  ~HostBuffer();

  unsigned char* data() { return data_; }
  const unsigned char* data() const { return data_; }
  unsigned char& operator[](size_t at) { return data_[at]; }
  unsigned char operator[](size_t at) const { return data_[at]; }

 private:
  unsigned char* data_;  // aligned as pages are
  size_t capacity_;
};

}  // namespace nvshare::e2e
