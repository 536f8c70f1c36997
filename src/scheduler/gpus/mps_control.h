// Starts nvidia-cuda-mps-control, and asks it. Every function waits for a process, some for seconds: for a thread of their own, or the end.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "scheduler/gpus/trust_group.h"

namespace nvshare::scheduler {

inline constexpr char kMpsControlProgram[] = "nvidia-cuda-mps-control";

// As whom a daemon runs.
struct MpsUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
};

// Of the text of a /proc/PID/status: its effective group and its other groups; an error if it has none. Pure.
Result<MpsUser> mps_user_of(uid_t uid, std::string_view process_status);

// Where a daemon has its things. <runtime>/mps belongs to the scheduler, <runtime>/mps/UID and all below to the user alone. Names of groups
// have no dot (protocol/trust_group.h), so that no two of these are the same.
struct MpsFolders {
  std::string base;    // <runtime>/mps
  std::string folder;  // <runtime>/mps/UID
  std::string group;   // <runtime>/mps/UID/group-NAME; empty: those below are in the user's folder itself
  std::string pipes;   // for CUDA_MPS_PIPE_DIRECTORY
  std::string logs;
  std::string output;  // <runtime>/mps/UID.out or UID-NAME.out: what the daemon prints; the scheduler's
  std::string note;    // <runtime>/mps/UID.daemon or UID-NAME.daemon: which process it is, for the next scheduler; the scheduler's

  static MpsFolders of(const std::string& runtime_dir, const TrustGroup& group);
};

// Of which group the note in that file of <runtime>/mps is; nothing: it is no note. Pure.
std::optional<TrustGroup> group_of_note(std::string_view file);

// The first in PATH, else where drivers put it. An error says where it was looked for.
Result<std::string> find_mps_control();

struct MpsDaemon {
  pid_t pid = 0;
  FileDescriptor pidfd;
};

// Makes the folders and starts `nvidia-cuda-mps-control -f` as that user, in a session of its own. It may not answer yet.
Result<MpsDaemon> start_mps_daemon(const std::string& program, const MpsUser& user, const MpsFolders& folders);

// What the front end prints when it is given these commands; an error if it found no daemon, or took longer than `patience`.
Result<std::string> ask_mps_control(const std::string& program, const MpsUser& user, const MpsFolders& folders, const std::string& commands,
                                    std::chrono::milliseconds patience);

// What a group's daemon made, as that user, so that names that come once leave nothing behind; what the user made there stays. Nothing of
// the group without a name.
void remove_mps_folders(const MpsUser& user, const MpsFolders& folders);

struct MpsUsers {
  std::vector<pid_t> servers;
  std::set<pid_t> programs;
};
// Which servers there are, and which processes are attached to them.
Result<MpsUsers> list_mps_users(const std::string& program, const MpsUser& user, const MpsFolders& folders,
                                std::chrono::milliseconds patience);

// Lines that are a number, of what the front end prints. Pure.
std::vector<pid_t> pids_in(std::string_view text);

// Which daemon an earlier scheduler left behind; pid 0: none that lives.
struct MpsNote {
  pid_t pid = 0;
  uint64_t start_time = 0;
  MpsUser user;
};
Result<void> write_mps_note(const MpsFolders& folders, const MpsNote& note);
MpsNote read_mps_note(const MpsFolders& folders, uid_t user);

std::string last_line_of_file(const std::string& path);

FileDescriptor open_process(pid_t pid);  // none: it has ended, or the kernel is older than 5.3

}  // namespace nvshare::scheduler
