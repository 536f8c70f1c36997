// The tenant's memory limit: an allocation that the lease does not cover asks the scheduler for more (protocol/messages.h, docs/adr/0006).
#include "interposer/turn/concerns.h"

namespace nvshare::interposer::turn {

namespace {

void ask(Turn& turn, const At& at) { at.send(turn, AskHeadroom{++turn.headroom.request, turn.headroom.bytes}); }

}  // namespace

void want_headroom(Turn& turn, const At& at, uint64_t bytes) {
  turn.headroom.answer = Headroom::Answer::kAsked;
  turn.headroom.bytes = bytes;
  if (turn.connected) ask(turn, at);
}

void answer_headroom(Turn& turn, const At& at, const protocol::Headroom& message) {
  Headroom& headroom = turn.headroom;
  const bool answers = headroom.answer == Headroom::Answer::kAsked && message.request == headroom.request;
  const bool covers = answers && message.granted != 0 && message.bytes >= headroom.bytes;
  at.add(GrowLease{message.bytes, covers ? headroom.bytes : 0});
  if (answers) headroom.answer = covers ? Headroom::Answer::kCharged : Headroom::Answer::kRefused;
}

void ask_headroom_anew(Turn& turn, const At& at) {
  if (turn.headroom.answer == Headroom::Answer::kAsked) at.add(TryLease{turn.headroom.bytes});
}

void lease_tried(Turn& turn, const At& at, bool charged) {
  if (turn.headroom.answer != Headroom::Answer::kAsked) return;
  if (charged) {
    turn.headroom.answer = Headroom::Answer::kCharged;
  } else {
    ask(turn, at);
  }
}

}  // namespace nvshare::interposer::turn
