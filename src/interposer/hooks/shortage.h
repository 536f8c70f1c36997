// What happens when the driver is out of GPU memory in the middle of a call of its own: our caches go back, the scheduler is asked for
// room, and the call is tried again, a bounded number of times. Only then does the program see the error.
//
// Used by the wrappers of the classes submit and grows (submit.h), by contexts, and by memory that the driver allocates for us.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"

namespace nvshare::interposer {

class Device;
class Process;

class Shortage {
 public:
  // `what`: the driver's function, for the log; null: not known.
  explicit Shortage(const char* what) : what_(what) {}

  // After a call that was out of memory; outside the gate, no lock held. True: there may be room now, try again (inside the gate). False:
  // the error is the program's to see; the log says why.
  bool make_room(Device& device);
  // The same on the GPU of the current context; false without one.
  bool make_room(Process& process);
  // For the creation of a context on that GPU, before it has one: the scheduler knows of the newcomer, and its neighbours make room for it.
  // False soon where there is room: driver 580 refuses contexts with that error for other reasons as well.
  bool make_room_for_context(Device& device);

 private:
  bool give_up(const Device& device, const char* why) const;

  const char* what_;
  uint32_t attempts_ = 0;
  uint64_t step_ = 0;  // bytes of room that the next attempt asks for
};

}  // namespace nvshare::interposer
