// A preloaded library comes before AddressSanitizer's runtime, which objects unless told that this is meant.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "verify_asan_link_order=0"; }
