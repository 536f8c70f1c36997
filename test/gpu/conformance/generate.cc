#include "generate.h"

#include "generate_rows.h"

namespace conformance {
namespace plans {

class Maker : public Rows {
 public:
  Maker(const Settings& settings, uint64_t sequence) : Rows(settings, sequence), sequence_(sequence), busy_(!cold_ && sequence % 4 != 0) {
    for (int i = 0; i < settings.devices && i < 2; ++i) {
      object('c', i).live = true;
    }
    object('p', 0).live = true;
    choose_groups();
  }

  Plan make() {
    const int calls = !cold_ ? settings_.calls : settings_.cold_calls > 0 ? settings_.cold_calls : settings_.calls / 3;
    const int length = calls / 2 + static_cast<int>(random_.below(calls));
    while (static_cast<int>(plan_.size()) < length) {
      step();
    }
    end_capture();
    return std::move(plan_);
  }

 private:
  const uint64_t sequence_;
  const bool busy_;

  // ---- which operations ----
  void choose_groups() {
    static constexpr uint32_t kChoices[] = {kAsync,
                                            kVmm,
                                            kManaged,
                                            kHost,
                                            kArray | kTexture,
                                            kGraph,
                                            kGraph,
                                            kCapture | kGraph,
                                            kModule,
                                            kTexture,
                                            kQuery,
                                            kStream,
                                            kLaunch,
                                            kDevice,
                                            kMemOp | kStream,
                                            kAsync | kGraph,
                                            kVmm | kGraph,
                                            kRare,
                                            kRare | kArray | kTexture,
                                            kOld | kModule | kLaunch};
    groups_ = kPlain | kCopy | kQuery;
    const int64_t count = 2 + random_.below(4);
    for (int64_t i = 0; i < count; ++i) {
      groups_ |= kChoices[random_.below(static_cast<int64_t>(std::size(kChoices)))];
    }
    // To make and to destroy one takes a driver half a second, and no other process gets anything done meanwhile.
    if (random_.below(1000) < 6) {
      groups_ |= kContext;
    }
    if (settings_.devices > 1 && random_.chance(50)) {
      groups_ |= kPeer;
    }
    quiet_ = random_.chance(15) ? 4 + random_.below(16) : 0;
    threads_ = random_.chance(4) ? 3 : 1;
    if (cold_) {
      groups_ = kPlain | kCopy | kGraph | (random_.chance(30) ? kAsync : kPlain);
      quiet_ = 10 + random_.below(20);
      threads_ = 1;
    }
    // From a source of its own, so that the other sequences of a seed stay as they are.
    Random second(settings_.seed * 31 + sequence_);
    if (second.chance(5) || sequence_ >= kPartnerFirst) {
      groups_ |= kIpc | (second.chance(50) ? kVmm : kAsync) | kStream;
    }
    if (second.chance(2)) {
      groups_ |= kGreen | kStream | kLaunch;
    }
    groups_ &= settings_.groups;
    wrong_percent_ = random_.chance(30) ? 0 : 4 + static_cast<int>(random_.below(12));
    for (size_t i = 0; i < ops().size(); ++i) {
      const Op& op = ops()[i];
      const bool wanted = (op.group & groups_) == op.group && (op.group & kNever) == 0;
      // Entering another GPU's context needs no new context.
      const bool moves = (groups_ & (kPeer | kGreen)) != 0 && std::string_view(op.symbol) == "cuCtxSetCurrent";
      if ((wanted || moves) && !is_in(settings_.without, static_cast<int>(i))) {
        // Most sequences use what they allocate more often than others: an allocation takes a driver a hundred times as long as most calls.
        const bool cheap = op.group == kCopy || op.group == kQuery || op.group == kLaunch;
        total_ += op.weight * (cheap && busy_ ? 3 : 1);
        weights_.push_back({static_cast<int>(i), total_});
      }
    }
  }

  int choose() {
    const int64_t at = random_.below(total_);
    return std::upper_bound(weights_.begin(), weights_.end(), at, [](int64_t value, const auto& entry) { return value < entry.second; })
        ->first;
  }

  void step() {
    lost_in_ = -1;
    if (!is_quiet() && make_a_row()) {
      return;
    }
    for (int i = 0; i < 30; ++i) {
      if (make_call(choose())) {
        break;
      }
    }
    ask_again();
    if (capturing_ >= 0 && --capture_left_ <= 0) {
      end_capture();
    }
  }

  void end_capture() {
    if (capturing_ < 0) {
      return;
    }
    forced_stream_ = capturing_;
    make_call(op_of("cuStreamEndCapture"));
    forced_stream_ = -9;
    capturing_ = -1;
  }
};

}  // namespace plans

int slots_of(char letter) {
  switch (letter) {
    case 'm':
      return kMemorySlots;
    case 'n':
      return 16;
    case 's':
    case 'e':
    case 'h':
      return 6;
    case 'j':
    case 'c':
    case 'g':
    case 'x':
    case 'r':
    case 'a':
    case 't':
    case 'u':
      return 4;
    case 'p':
    case 'l':
    case 'k':
      return 3;
    case 'z':
      return 1;
    default:
      return 2;
  }
}

Plan generate(const Settings& settings, uint64_t sequence) { return plans::Maker(settings, sequence).make(); }

}  // namespace conformance
