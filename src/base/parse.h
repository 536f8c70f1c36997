// Text to bytes, durations, numbers. Errors name the text and the accepted forms; the caller adds the variable's name.
// Pure functions, thread-safe, no allocation.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace nvshare {

// "123" (bytes), or a number, possibly with a decimal fraction, followed by K M G T (powers of 1000), Ki Mi Gi Ti (powers of 1024),
// each optionally followed by B. Range 0 .. 2^63-1 bytes.
Result<uint64_t> parse_bytes(std::string_view text);

// "60" (seconds), or a number, possibly with a decimal fraction, followed by ns, us, ms, s, min or h. Range 0 .. 2^63-1 ns.
Result<int64_t> parse_duration_ns(std::string_view text);

// A decimal integer within [minimum, maximum].
Result<int64_t> parse_integer(std::string_view text, int64_t minimum, int64_t maximum);

// A decimal number within [minimum, maximum]; no exponent, no sign.
Result<double> parse_decimal(std::string_view text, double minimum, double maximum);

}  // namespace nvshare
