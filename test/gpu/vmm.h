// A reserved range of GPU addresses whose memory comes and goes, for the probes. Errors end the process.
#pragma once

#include <map>

#include "driver.h"

namespace gputest {

class VmmRange {
 public:
  explicit VmmRange(size_t bytes) : bytes_(bytes) { require(driver().address_reserve(&base_, bytes, 0, 0, 0), "cuMemAddressReserve"); }
  VmmRange(const VmmRange&) = delete;
  VmmRange& operator=(const VmmRange&) = delete;
  ~VmmRange() {
    while (!handles_.empty()) {
      unmap(handles_.begin()->first, handles_.begin()->second.bytes);
    }
    driver().address_free(base_, bytes_);
  }

  CUdeviceptr base() const { return base_; }

  // `bytes` of new memory at `offset`, readable and writable; multiples of the granularity (2 MiB).
  void map(size_t offset, size_t bytes) {
    create(offset, bytes);
    place(offset);
    allow(offset, bytes);
  }
  void unmap(size_t offset, size_t bytes) {
    detach(offset, bytes);
    release(offset);
  }

  // The single steps of map and unmap, to be timed.
  void create(size_t offset, size_t bytes) {
    const MemAllocationProp prop{1, 0, {1, 0}, nullptr, {}};
    CUmemHandle handle = 0;
    require(driver().mem_create(&handle, bytes, &prop, 0), "cuMemCreate");
    handles_[offset] = {handle, bytes};
  }
  void place(size_t offset) {
    const Piece& piece = handles_.at(offset);
    require(driver().mem_map(base_ + offset, piece.bytes, 0, piece.handle, 0), "cuMemMap");
  }
  void allow(size_t offset, size_t bytes) {
    const MemAccess access{{1, 0}, 3};
    require(driver().mem_set_access(base_ + offset, bytes, &access, 1), "cuMemSetAccess");
  }
  void detach(size_t offset, size_t bytes) { require(driver().mem_unmap(base_ + offset, bytes), "cuMemUnmap"); }
  void release(size_t offset) {
    require(driver().mem_release(handles_.at(offset).handle), "cuMemRelease");
    handles_.erase(offset);
  }

 private:
  struct Piece {
    CUmemHandle handle;
    size_t bytes;
  };
  CUdeviceptr base_ = 0;
  size_t bytes_;
  std::map<size_t, Piece> handles_;
};

}  // namespace gputest
