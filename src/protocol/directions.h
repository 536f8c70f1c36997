// Who sends which message, and when: four lists, each message in one of them. Everything that handles messages goes by them, so that the
// compiler names a message for which somebody has no function. Pure, thread-safe. Used by both sides.
#pragma once

#include <span>
#include <type_traits>

#include "protocol/codec.h"

namespace nvshare::protocol {

template <typename... Payloads>
struct Messages {};

// A client's, before there is a client: the first of a connection.
using OpeningMessages = Messages<Register, AskMps, AskOwn>;
// What answers them. (Refused may, too.)
using OpeningAnswers = Messages<Registered, TenantUse, MpsGroup, OwnReport>;

// A registered client's.
using ClientMessages = Messages<ReqLock, LockReleased, LockPaused, LockResumed, Drained, EndsSoon, MemUpdate, SwapProgress, AskWhyWaiting,
                                Progress, About, KeepsMemory, Import, Exported, ImportClosed, ExportEnded, ArenaRequest, ArenaReturned,
                                ArenaShrunk, ArenaHeld, AskHeadroom, HeadroomReturned, HeadroomTaken>;
// The scheduler's, to a registered client.
using SchedulerMessages = Messages<LockOk, DropLock, KeepLock, WaitForMem, MemAvailable, Evict, UpdateLimit, Contention, Prefetch,
                                   AskProgress, WhyWaiting, ExportWanted, Imported, ImportInherited, PrepareSwap, ArenaSegment,
                                   ArenaRefused, ArenaShrink, Headroom, RecallHeadroom, Refused>;

template <typename... Lists>
struct JoinedMessages;
template <typename... Payloads>
struct JoinedMessages<Messages<Payloads...>> {
  using type = Messages<Payloads...>;
};
template <typename... First, typename... Second, typename... Rest>
struct JoinedMessages<Messages<First...>, Messages<Second...>, Rest...> {
  using type = typename JoinedMessages<Messages<First..., Second...>, Rest...>::type;
};
using AllMessages = JoinedMessages<OpeningMessages, ClientMessages, OpeningAnswers, SchedulerMessages>::type;

template <typename... Payloads>
constexpr bool contains(Messages<Payloads...>, MessageType type) {
  return ((type == TypeOf<Payloads>::value) || ...);
}

// `Payload` is one of that list.
template <typename Payload, typename List>
inline constexpr bool kIsOneOf = false;
template <typename Payload, typename... Payloads>
inline constexpr bool kIsOneOf<Payload, Messages<Payloads...>> = (std::is_same_v<Payload, Payloads> || ...);

template <typename... Payloads>
constexpr bool all_have_numbers_below(Messages<Payloads...>, unsigned bound) {
  return ((static_cast<unsigned>(TypeOf<Payloads>::value) < bound) && ...);
}
template <typename... Payloads>
constexpr bool all_have_numbers_from(Messages<Payloads...>, unsigned bound) {
  return ((static_cast<unsigned>(TypeOf<Payloads>::value) >= bound) && ...);
}
static_assert(all_have_numbers_below(OpeningMessages{}, 64) && all_have_numbers_below(ClientMessages{}, 64));
static_assert(all_have_numbers_from(OpeningAnswers{}, 64) && all_have_numbers_from(SchedulerMessages{}, 64));

// Decodes a packet that decode_type found to be `type`, one of that list, and hands the message to its `handler(const Payload&)`. It does
// not compile as long as `handler` takes not every message of the list. An error: it is bad, or none of them; nothing was handled.
template <typename... Payloads, typename Handler>
Result<void> dispatch(Messages<Payloads...> list, MessageType type, std::span<const std::byte> packet, Handler&& handler) {
  if (!contains(list, type)) return error_format("%s is not for this side, or not now", name_of(type));
  Result<void> outcome;
  const auto handle_if = [&]<typename Payload>(Payload*) {
    if (type != TypeOf<Payload>::value) return false;
    if (Result<Payload> message = decode<Payload>(packet)) {
      handler(static_cast<const Payload&>(*message));
    } else {
      outcome = message.error();
    }
    return true;
  };
  static_cast<void>((handle_if(static_cast<Payloads*>(nullptr)) || ...));
  return outcome;
}

}  // namespace nvshare::protocol
