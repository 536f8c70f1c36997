// nvsharectl version: releases of all parts.
#pragma once

namespace nvshare::cli {

int version_command();

}  // namespace nvshare::cli
