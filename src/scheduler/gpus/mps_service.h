// The scheduler's MPS daemons: starts, watches, restarts and ends one for each user whose programs ask for it. What is decided stands in
// mps_groups.h, what is done in mps_control.h: this puts both together. A thread of its own runs and asks processes; all else belongs to
// the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "loop/event_loop.h"
#include "protocol/messages.h"
#include "scheduler/gpus/mps_control.h"
#include "scheduler/gpus/mps_groups.h"

namespace nvshare::scheduler {

class MpsService {
 public:
  struct Options {
    std::string runtime_dir;
    bool on = false;
    std::function<std::string()> obstacle;  // why no GPU here can be used so; empty: it can
  };
  struct Callbacks {
    std::function<void(MpsGroups::Asker asker, const protocol::MpsGroup& answer)> answer;
    std::function<void(uid_t user, const std::set<pid_t>& programs)> attached;  // all of the user's that are
  };

  // Takes over what an earlier scheduler left behind.
  MpsService(EventLoop& loop, Options options, Callbacks callbacks);
  // Ends the daemons that no program uses, within seconds; the next scheduler takes over the others.
  ~MpsService();
  MpsService(const MpsService&) = delete;
  MpsService& operator=(const MpsService&) = delete;

  // A process of that user asks; the answer may come at once. Refused for processes in containers: the daemon's folder is not theirs.
  void ask(MpsGroups::Asker asker, pid_t pid, uid_t user);
  void joined(uid_t user);  // a program of that user has become a client
  std::vector<protocol::admin::MpsReport> report() const { return groups_.report(); }

 private:
  struct Daemon {
    MpsUser user;
    MpsFolders folders;
    pid_t pid = 0;
    bool is_child = false;
    FileDescriptor pidfd;
    Watch watch;  // after the descriptor, so that it goes first
  };

  void adopt_all();
  void adopt(uid_t user);
  void watch(Daemon& daemon);
  void perform(const MpsGroups::Actions& actions);
  void start(uid_t user);
  void look(uid_t user);
  void quit(uid_t user);
  void kill_daemon(uid_t user);
  void daemon_ended(uid_t user);
  void rearm();
  void work();
  void later(std::function<void()> job);  // on the thread
  void end_unused();

  EventLoop& loop_;
  const Options options_;
  const Callbacks callbacks_;
  std::string program_;  // empty: there is none
  std::string no_program_;
  MpsGroups groups_;
  std::map<uid_t, Daemon> daemons_;
  Timer timer_;

  Mutex mutex_;
  Condition wake_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // from the first job on
};

}  // namespace nvshare::scheduler
