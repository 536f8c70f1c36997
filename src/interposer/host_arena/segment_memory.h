// The memory of a segment: made or mapped, pinned, and given back. Takes no lock of ours; takes seconds.
#pragma once

#include <cstddef>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

// This process's own memory, there in full. Null: there is none.
char* make_own(size_t bytes);
// Memory that the scheduler made. Null: it is not what was said.
char* map_lent(int fd, size_t bytes);
// Makes it page-locked in that context; false: the driver does not want to, and copies will be slower.
bool pin(char* data, size_t bytes, cuda::CUcontext context);
// Returns it to the system. `pinned_in` may be null.
void unmake(char* data, size_t bytes, cuda::CUcontext pinned_in);

}  // namespace nvshare::interposer
