// What an interprocess event is in all processes that have it: its records, numbered, and which of them were reached. A page of memory in a
// file that the importer opens through /proc, as memory is (ipc.cc).
//
// A record that its process did not live to reach counts as reached, so that nobody waits for ever; what a real driver does then was not
// measured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cuda/driver_types.h"

namespace simgpu {

class IpcEvent {
 public:
  static std::shared_ptr<IpcEvent> make();                                               // null: no memory
  static std::shared_ptr<IpcEvent> open(const nvshare::cuda::CUipcEventHandle& handle);  // null: there is no such event (any more)
  static bool is_handle(const nvshare::cuda::CUipcEventHandle& handle, bool* of_this_process);
  ~IpcEvent();
  IpcEvent(const IpcEvent&) = delete;
  IpcEvent& operator=(const IpcEvent&) = delete;

  // Of an event that was made here.
  nvshare::cuda::CUipcEventHandle handle() const;
  bool made_here() const { return file_ >= 0; }

  uint64_t begin_record();  // its number
  void reach(uint64_t number);
  uint64_t last_record() const;  // 0: never recorded
  bool is_reached(uint64_t number) const;
  void wait(uint64_t number) const;

 private:
  struct Page;
  IpcEvent(Page* page, int file) : page_(page), file_(file) {}

  Page* const page_;
  const int file_;  // -1: opened
};

}  // namespace simgpu
