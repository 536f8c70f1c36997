// When the GPU work that a thread has in flight will have ended. Pure; of one thread.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

// A thread records an event after every so many of its submissions, its *stretch*, and looks now and then whether it is done. From what
// the GPU took from one event to the next follows when the next one will be done, as long as the work stays alike.
class WorkEnd {
 public:
  struct Done {
    int64_t not_yet_ns;    // when it was last seen not to be done; 0: it never was
    int64_t seen_ns;       // when it was seen to be done
    int64_t spacing_ns;    // of the GPU, from the event before it; 0: not known
    uint32_t submissions;  // of its stretch
  };
  // The next event is done.
  void done(const Done& event);
  // The end of one was not seen.
  void lost() { done_at_ns_ = 0; }
  // With so many submissions after the event that was done last; 0: not known.
  int64_t at_ns(uint32_t submissions) const;

 private:
  int64_t done_at_ns_ = 0;    // of the last event; 0: not known
  double submission_ns_ = 0;  // that one takes; 0: not known
};

}  // namespace nvshare::interposer
