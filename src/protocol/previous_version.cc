// Linked instead of version.cc, this makes a scheduler or a library that knows nothing of the newest version: the previous release, as far
// as the protocol goes. For tests of upgrades.
#include "protocol/codec.h"

namespace nvshare::protocol {

static_assert(kVersionMin < kVersionMax);

uint16_t version_spoken() { return kVersionMax - 1; }

}  // namespace nvshare::protocol
