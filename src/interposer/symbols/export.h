#pragma once

// Everything in libnvshare.so is hidden but for the hooks. generated/libnvshare.map is the second lock on the same door.
#define NVSHARE_EXPORT [[gnu::visibility("default")]]
