// One thread of a program stands still while its others go on, as where the machine gives it no processor. By ptrace, so that the thread
// that makes one has to end it. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

namespace nvshare::e2e {

class StoppedThread {
 public:
  // The thread of that name (prctl's), once it waits in system call `call`, where it holds no lock of the program.
  StoppedThread(pid_t process, const std::string& name, long call);
  ~StoppedThread() { go_on(); }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  bool stands() const { return thread_ > 0; }  // false: it is not to be had
  void go_on();

 private:
  bool stop(pid_t thread, const std::string& task, long call);

  pid_t thread_ = 0;
};

}  // namespace nvshare::e2e
