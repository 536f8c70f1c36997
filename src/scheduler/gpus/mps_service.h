// The scheduler's MPS daemons: starts, watches, restarts and ends one for each trust group whose programs ask for it. What is decided
// stands in mps_groups.h, what is done in mps_control.h: this puts both together. Threads of user_jobs.h run and ask processes; all else
// belongs to the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "loop/event_loop.h"
#include "protocol/messages.h"
#include "scheduler/gpus/mps_control.h"
#include "scheduler/gpus/mps_groups.h"
#include "scheduler/gpus/user_jobs.h"

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
    std::function<void(const MpsGroups::Attached& seen)> attached;
  };

  // Takes over what an earlier scheduler left behind.
  MpsService(EventLoop& loop, Options options, Callbacks callbacks);
  // Ends the daemons that no program uses, within seconds; the next scheduler takes over the others.
  ~MpsService();
  MpsService(const MpsService&) = delete;
  MpsService& operator=(const MpsService&) = delete;

  // A process asks, for a group of its user's; the answer may come at once. Refused for processes in containers: the daemon's folder is not
  // theirs.
  void ask(MpsGroups::Asker asker, pid_t pid, const TrustGroup& group);
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
  void adopt(const TrustGroup& group);
  void watch(const TrustGroup& group, Daemon& daemon);
  void perform(const MpsGroups::Actions& actions);
  void start(const TrustGroup& group);
  void look(const TrustGroup& group);
  void quit(const TrustGroup& group);
  void kill_daemon(const TrustGroup& group);
  void daemon_ended(const TrustGroup& group);
  void forget(const TrustGroup& group);
  void rearm();
  void end_unused();
  bool end_unless_used(const TrustGroup& group, Daemon& daemon);

  EventLoop& loop_;
  const Options options_;
  const Callbacks callbacks_;
  std::string program_;  // empty: there is none
  std::string no_program_;
  MpsGroups groups_;
  std::map<TrustGroup, Daemon> daemons_;
  Timer timer_;
  UserJobs jobs_{MpsGroups::kUsersMost};
};

}  // namespace nvshare::scheduler
