// A part of the host arena that holds a chunk's bytes.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

struct HostSlot {
  char* data = nullptr;  // null: none
  uint32_t segment = 0;
  uint32_t bytes = 0;
};

}  // namespace nvshare::interposer
