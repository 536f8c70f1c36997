// How soon a viewer looks again after a change: at once while changes are few, and so that it takes a small share of a processor where
// they never end. Pure, not thread-safe.
#pragma once

namespace nvshare::cli::top {

class Pace {
 public:
  static constexpr double kShare = 0.0165;      // of a processor, in the long run
  static constexpr double kSavedS = 0.05;       // processor time that may be used at once after a quiet time
  static constexpr double kApartMinS = 0.02;    // between two looks; the scheduler tells of changes every 50 ms at most
  static constexpr double kWholeShare = 0.003;  // of a processor, for whole reports besides
  static constexpr double kWholeEveryMaxS = 5;

  // What a look took of a processor, and when it ended.
  void looked(double processor_s, double now_s);
  // For how long to wait from then on.
  double wait_s() const;

  // The same of a whole report: it costs several times as much, and no change waits until that is made up for.
  void looked_at_all(double processor_s) { whole_s_ = processor_s; }
  // How often one is asked for, where `interval_s` is wished for.
  double whole_every_s(double interval_s) const;

 private:
  double whole_s_ = 0;
  double saved_s_ = kSavedS;
  double at_s_ = 0;
};

}  // namespace nvshare::cli::top
