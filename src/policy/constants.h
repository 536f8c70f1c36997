// Amounts and times that the policy's rules are made of. Private to policy/ and its tests.
#pragma once

#include <cstddef>

#include "policy/policy.h"

namespace nvshare::policy {

inline constexpr Bytes kMiB = 1LL << 20;
inline constexpr Bytes kHostMost = 1LL << 56;
inline constexpr Bytes kBytesMost = 1LL << 50;  // of one client, or one movement: sums of thousands stay far from overflow
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;

inline constexpr Bytes kGrowthBatchMax = 256 * kMiB;  // moved out at once for a program that grows
inline constexpr Bytes kPieceMost = 64 * kMiB;        // memory moves out in pieces as large as that, and the last one goes as a whole
// Where two programs trade places piece by piece, this much has to be free on the GPU and in host memory together: segments of host memory
// of which a part is in use cannot change hands.
inline constexpr Bytes kTradeLeast = 512 * kMiB;
inline constexpr Bytes kSlackMax = 256 * kMiB;  // budget beyond the need while nobody waits
inline constexpr Bytes kSlackMin = 8 * kMiB;
inline constexpr Bytes kBudgetStep = 32 * kMiB;   // smallest raise on the way to a full budget: one message per chunk, not per page
inline constexpr Bytes kCeilingStep = 64 * kMiB;  // smallest change of a ceiling worth a message
// Where a GPU has more clients than that, so many are told of a new ceiling in one step, and all within a second.
inline constexpr size_t kCeilingsAtOnce = 64;
// There one that fell is not worth a message either while it fell by no more than this part of what its client lacks to it: programs come
// and go all the time, and no program asks for all that there is in one piece.
inline constexpr Bytes kCeilingPart = 64;
inline constexpr Duration kCeilingsWithin = kSecond;
inline constexpr Bytes kBandwidthAssumed = 1'000'000'000;  // bytes/s until a swap was measured
inline constexpr Bytes kBandwidthLeast = kMiB;             // bytes/s, and
inline constexpr Bytes kBandwidthMost = 1LL << 42;         // beyond these it is no measurement
inline constexpr Bytes kBandwidthSample = 64 * kMiB;       // smaller copies say little about the link
inline constexpr Duration kBackoffMin = 200 * kMillisecond;
inline constexpr Duration kBackoffMax = 10 * kSecond;
inline constexpr Duration kDrainBackoffMax = 2 * kSecond;  // of a drain; but at least twice as long as the attempt held the program up
inline constexpr Duration kLoadGrace = 10 * kSecond;       // a load may take this + twice the expected time before its turn's clock starts
inline constexpr Duration kShareWindow = 60 * kSecond;     // over which the use of a waking client is judged
inline constexpr int kPromoteTurns = 4;                    // a waiter passed over for so many turn limits is served as the highest priority
inline constexpr int kUndrainable = 5;                     // drains that failed in a row before a client is shown as not drainable
inline constexpr int kDoubtful = 2;                        // drains that failed in a row before nobody is held back for the next attempt
inline constexpr Duration kOverstayMost = 60 * kSecond;    // so long a client may keep the GPU against requests; then it comes last
// The same of a member of a gang, whose drain fails whenever it meets the members at different places.
inline constexpr Duration kGangOverstayMost = 180 * kSecond;
inline constexpr Duration kLastFor = 600 * kSecond;  // and so long at most after it gave the GPU up
inline constexpr Duration kSlowDrain = kSecond;      // a drain that takes longer holds nobody back either
// Members of a gang drain together within this time, or within twice what the last drain of who has not drained took; else one waits for
// another.
inline constexpr Duration kCatchUpAfter = 30 * kMillisecond;
inline constexpr Duration kCatchUpAfterMost = 2 * kSecond;
inline constexpr size_t kGangMost = 512;        // a tenant with more clients is in no gang: a step looks at all of a gang, on all its GPUs
inline constexpr int kCatchUps = 20;            // so often members catch up before the gang goes on, to be asked again later
inline constexpr Duration kOwnPause = kSecond;  // who was dropped in mid-work asks again sooner
inline constexpr Duration kGangForming = 10 * kSecond;  // a new member of a gang that has not asked yet may soon need any amount
inline constexpr Duration kGangReturn = kSecond;        // who was dropped in mid-work is taken to ask again within this time
inline constexpr int kEvictionHopeless = 3;             // evictions that failed in a row before nobody waits for the next attempt

}  // namespace nvshare::policy
