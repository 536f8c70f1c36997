#include "scheduler/gpus/mps_control.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/mutex.h"
#include "protocol/trust_group.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kOutputMost = 64 << 10;
constexpr size_t kPathMost = 107;  // of a Unix socket
constexpr size_t kGroupsMost = 1024;
constexpr int64_t kLastLineMost = 4096;
constexpr int kLaunchPatienceMs = 3000;
constexpr std::chrono::milliseconds kKillPatience{1000};
constexpr int kFailures = 3;            // where a child says what it could not do
constexpr long kCloseRange = 436;       // close_range, Linux 5.9
constexpr int kDescriptorsMost = 4096;  // that are closed one by one before
constexpr char kNoteSuffix[] = ".daemon";
constexpr const char* kUsualFolders[] = {"/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/bin"};
constexpr char kHowToAllow[] =
    "; a scheduler that serves several users needs the right to (deploy/systemd/mps.conf), and each user's own scheduler does not";

// What a child could not do before it became the program.
enum class Step : int { kSession, kGroups, kUser, kFolders, kRun };
struct Failure {
  Step step;
  int number;
};

const char* name_of(Step step) {
  switch (step) {
    case Step::kSession:
      return "begin a session";
    case Step::kGroups:
      return "take the user's groups";
    case Step::kUser:
      return "become the user";
    case Step::kFolders:
      return "make its folders";
    case Step::kRun:
      return "run it";
  }
  return "?";
}

// All that a child needs, made before the fork: between it and execve only what is safe in a signal handler may be called.
struct Launch {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  const MpsUser* user = nullptr;
  const MpsFolders* makes = nullptr;    // folders to make, or null
  const MpsFolders* removes = nullptr;  // folders to remove instead of running the program, or null
  int input = -1, output = -1;
};

std::vector<std::string> environment_of(const MpsFolders& folders) {
  std::vector<std::string> environment = {"CUDA_MPS_PIPE_DIRECTORY=" + folders.pipes, "CUDA_MPS_LOG_DIRECTORY=" + folders.logs};
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LANG"}) {
    if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// In a child. Only what is in the folder itself: a user's own folders in it stay, and it with them.
void remove_folder(const char* path) {
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return;
  struct Entry {
    uint64_t inode;
    int64_t next;
    uint16_t length;
    uint8_t type;
    char name[1];
  };
  alignas(Entry) char entries[4096];
  for (long length = 0; (length = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < length;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      unlinkat(folder, entries + at + offsetof(Entry, name), 0);
      at += entry->length;
    }
  }
  close(folder);
  rmdir(path);
}

// In a child. What the threads of other users' daemons have open just now: this one's user might keep it open for as long as he likes.
void close_all_from(int first) {
  if (syscall(kCloseRange, first, ~0U, 0) == 0) return;
  for (int descriptor = first; descriptor < kDescriptorsMost; ++descriptor) close(descriptor);
}

[[noreturn]] void become(const Launch& launch, char* const* arguments, char* const* environment, int failures) {
  const auto fail = [&](Step step) {
    const Failure failure{step, errno};
    static_cast<void>(!write(failures, &failure, sizeof failure));
    _exit(127);
  };
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (const int number : {SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaction(number, &usual, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (setsid() < 0) fail(Step::kSession);
  // It is not the scheduler, which the kernel spares when memory is short.
  if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    static_cast<void>(!write(score, "0", 1));
    close(score);
  }
  if (dup2(launch.input, 0) < 0 || dup2(launch.output, 1) < 0 || dup2(launch.output, 2) < 0) fail(Step::kSession);
  if (failures != kFailures && dup3(failures, kFailures, O_CLOEXEC) < 0) fail(Step::kSession);
  failures = kFailures;
  close_all_from(kFailures + 1);
  if (launch.user->uid != geteuid()) {
    if (setgroups(launch.user->groups.size(), launch.user->groups.data()) != 0 ||
        setresgid(launch.user->gid, launch.user->gid, launch.user->gid) != 0)
      fail(Step::kGroups);
    if (setresuid(launch.user->uid, launch.user->uid, launch.user->uid) != 0) fail(Step::kUser);
  }
  umask(0077);
  if (launch.makes != nullptr) {
    for (const std::string* folder : {&launch.makes->group, &launch.makes->pipes, &launch.makes->logs}) {
      if (!folder->empty() && mkdir(folder->c_str(), 0700) != 0 && errno != EEXIST) fail(Step::kFolders);
    }
  }
  if (launch.removes != nullptr) {
    remove_folder(launch.removes->pipes.c_str());
    remove_folder(launch.removes->logs.c_str());
    rmdir(launch.removes->group.c_str());
    _exit(0);
  }
  if (chdir("/") != 0) fail(Step::kSession);
  execve(launch.program.c_str(), arguments, environment);
  fail(Step::kRun);
  _exit(127);
}

// Whether a child of ours has ended by then, or is none of ours any more.
bool ends_by(pid_t pid, std::chrono::steady_clock::time_point until, int* status) {
  const FileDescriptor pidfd = open_process(pid);
  while (true) {
    const pid_t ended = waitpid(pid, status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready{pidfd.get(), POLLIN, 0};
    poll(&ready, pidfd ? 1 : 0, static_cast<int>(pidfd ? left.count() : std::min<int64_t>(left.count(), 10)));
  }
}

// Children that were killed and have not ended: they wait for a file system that their user serves (FUSE), which no signal ends. Nothing
// more is started as that user until they have.
class Undead {
 public:
  void kill_and_wait(pid_t pid, uid_t user) {
    kill(pid, SIGKILL);
    int status = 0;
    if (ends_by(pid, std::chrono::steady_clock::now() + kKillPatience, &status)) return;
    const Lock lock(mutex_);
    left_.emplace(user, pid);
  }
  // Of that user; 0: none.
  pid_t of(uid_t user) {
    const Lock lock(mutex_);
    for (auto at = left_.lower_bound(user); at != left_.end() && at->first == user; at = left_.erase(at)) {
      int status = 0;
      if (waitpid(at->second, &status, WNOHANG) == 0) return at->second;
    }
    return 0;
  }

 private:
  Mutex mutex_;
  std::multimap<uid_t, pid_t> left_ GUARDED_BY(mutex_);
};

Undead& undead() {
  static Undead all;
  return all;
}

Result<pid_t> run(Launch launch) {
  const uid_t user = launch.user->uid;
  if (const pid_t pid = undead().of(user); pid != 0) {
    return error_format("cannot start %s as user %u: their process %d was killed and does not end, as it waits for a file system of theirs",
                        kMpsControlProgram, user, pid);
  }
  int failures[2];
  if (pipe2(failures, O_CLOEXEC) != 0) return error_format("cannot start %s: %s", kMpsControlProgram, std::strerror(errno));
  const FileDescriptor reads(failures[0]);
  FileDescriptor writes(failures[1]);
  const std::vector<char*> arguments = pointers_to(launch.arguments);
  const std::vector<char*> environment = pointers_to(launch.environment);
  const pid_t pid = fork();
  if (pid == 0) become(launch, arguments.data(), environment.data(), writes.get());
  if (pid < 0) return error_format("cannot start %s: %s", kMpsControlProgram, std::strerror(errno));
  writes.reset();
  // The child is its user's before it is the program: that may stop it, or mount something where it makes its folders.
  pollfd ready{reads.get(), POLLIN, 0};
  int seen = 0;
  do {
    seen = poll(&ready, 1, kLaunchPatienceMs);
  } while (seen < 0 && errno == EINTR);
  if (seen <= 0) {
    undead().kill_and_wait(pid, user);
    return error_format("cannot start %s as user %u: it did not get that far within %d ms", kMpsControlProgram, launch.user->uid,
                        kLaunchPatienceMs);
  }
  Failure failure{};
  ssize_t length = 0;
  do {
    length = read(reads.get(), &failure, sizeof failure);
  } while (length < 0 && errno == EINTR);
  if (length != sizeof failure) return pid;
  undead().kill_and_wait(pid, user);
  const bool may_not = failure.number == EPERM && (failure.step == Step::kGroups || failure.step == Step::kUser);
  return error_format("cannot start %s as user %u: it could not %s: %s%s", kMpsControlProgram, launch.user->uid, name_of(failure.step),
                      std::strerror(failure.number), may_not ? kHowToAllow : "");
}

// As the kernel knows it, without asking a file system that somebody may have mounted there.
Result<struct statx> look_at(const std::string& path) {
  struct statx status {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &status) != 0)
    return error_format("cannot look at %.150s: %s", path.c_str(), std::strerror(errno));
  return status;
}

// Whoever owns a folder may mount something over it.
Result<void> check_not_mounted(const std::string& path, const std::string& parent) {
  const Result<struct statx> here = look_at(path), above = look_at(parent);
  if (!here) return here.error();
  if (!above) return above.error();
  if (here->stx_dev_major == above->stx_dev_major && here->stx_dev_minor == above->stx_dev_minor) return {};
  return error_format("%.120s is not in the file system of %.100s; unmount what is there", path.c_str(), parent.c_str());
}

// A folder that belongs to that user, with that mode; made if it is missing. Its parent is the scheduler's own, so nobody else replaces it.
// With `parent` its owner may not have mounted anything there.
Result<void> make_folder(const std::string& path, uid_t user, gid_t group, mode_t mode, const std::string& parent = "") {
  if (mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return error_format("cannot create %.150s: %s", path.c_str(), std::strerror(errno));
  if (auto ok = parent.empty() ? Result<void>() : check_not_mounted(path, parent); !ok) return ok;
  const Result<struct statx> status = look_at(path);
  if (!status) return status.error();
  if (!S_ISDIR(status->stx_mode)) return error_format("%.150s is no folder; remove it", path.c_str());
  if (status->stx_uid != user && chown(path.c_str(), user, group) != 0) {
    return error_format("cannot give %.100s to user %u: %s%s", path.c_str(), user, std::strerror(errno), errno == EPERM ? kHowToAllow : "");
  }
  if (status->stx_uid == user && (status->stx_mode & 07777) != mode && chmod(path.c_str(), mode) != 0)
    return error_format("cannot set permissions of %.150s: %s", path.c_str(), std::strerror(errno));
  return {};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Result<MpsUser> mps_user_of(uid_t uid, std::string_view process_status) {
  MpsUser user{uid, 0, {}};
  bool has_group = false;
  std::istringstream lines{std::string(process_status)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    gid_t real = 0;
    if (name == "Gid:" && words >> real >> user.gid) has_group = true;
    if (name != "Groups:") continue;
    for (gid_t group = 0; words >> group && user.groups.size() < kGroupsMost;) user.groups.push_back(group);
  }
  if (!has_group) return error_format("the process that asks has ended");
  return user;
}

MpsFolders MpsFolders::of(const std::string& runtime_dir, const TrustGroup& group) {
  const std::string base = runtime_dir + "/mps";
  const std::string folder = base + "/" + std::to_string(group.user);
  const std::string named = group.name.empty() ? "" : folder + "/group-" + group.name;
  const std::string in = named.empty() ? folder : named;
  const std::string beside = named.empty() ? folder : folder + "-" + group.name;
  return {base, folder, named, in + "/pipe", in + "/log", beside + ".out", beside + kNoteSuffix};
}

std::optional<TrustGroup> group_of_note(std::string_view file) {
  if (!file.ends_with(kNoteSuffix)) return std::nullopt;
  file.remove_suffix(sizeof kNoteSuffix - 1);
  TrustGroup group;
  const auto [at, problem] = std::from_chars(file.data(), file.data() + file.size(), group.user);
  const std::string number = std::to_string(group.user);
  if (problem != std::errc() || !file.starts_with(number)) return std::nullopt;
  file.remove_prefix(number.size());
  if (file.empty()) return group;
  group.name = file.substr(1);
  return file[0] == '-' && protocol::is_trust_group(group.name) ? std::optional(group) : std::nullopt;
}

Result<std::string> find_mps_control() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  const auto in = [](const std::string& folder) {
    std::string program = folder + "/" + kMpsControlProgram;
    return folder.starts_with('/') && access(program.c_str(), X_OK) == 0 ? program : std::string();
  };
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (std::string program = in(folder); !program.empty()) return program;
  }
  for (const char* folder : kUsualFolders) {
    if (std::string program = in(folder); !program.empty()) return program;
  }
  return error_format("there is no %s in PATH or /usr/bin; it comes with NVIDIA's driver (Debian: nvidia-cuda-mps)", kMpsControlProgram);
}

Result<MpsDaemon> start_mps_daemon(const std::string& program, const MpsUser& user, const MpsFolders& folders) {
  if (folders.pipes.size() + sizeof "/control_privileged" > kPathMost) {
    return error_format("%.100s is too long for its sockets' names; accepted: up to %zu bytes; set NVSHARE_RUNTIME_DIR",
                        folders.pipes.c_str(), kPathMost - sizeof "/control_privileged");
  }
  if (auto ok = make_folder(folders.base, geteuid(), getegid(), 0755); !ok) return ok.error();
  if (auto ok = make_folder(folders.folder, user.uid, user.gid, 0700, folders.base); !ok) return ok.error();
  const FileDescriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const FileDescriptor output(open(folders.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!input || !output) return error_format("cannot write %.150s: %s", folders.output.c_str(), std::strerror(errno));
  Launch launch{program, {kMpsControlProgram, "-f"}, environment_of(folders), &user, &folders, nullptr, input.get(), output.get()};
  Result<pid_t> pid = run(std::move(launch));
  if (!pid) return pid.error();
  MpsDaemon daemon{*pid, open_process(*pid)};
  if (!daemon.pidfd) {
    undead().kill_and_wait(*pid, user.uid);
    return error_format("cannot watch process %d: %s; Linux 5.3 or newer is needed", *pid, std::strerror(errno));
  }
  return daemon;
}

Result<std::string> ask_mps_control(const std::string& program, const MpsUser& user, const MpsFolders& folders, const std::string& commands,
                                    std::chrono::milliseconds patience) {
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0) return error_format("cannot make a pipe: %s", std::strerror(errno));
  const FileDescriptor input_reads(input[0]);
  FileDescriptor input_writes(input[1]);
  if (pipe2(output, O_CLOEXEC) != 0) return error_format("cannot make a pipe: %s", std::strerror(errno));
  const FileDescriptor output_reads(output[0]);
  FileDescriptor output_writes(output[1]);
  // Less than a pipe holds, so that it waits for nobody.
  if (commands.size() > 4096 || write(input_writes.get(), commands.data(), commands.size()) != static_cast<ssize_t>(commands.size()))
    return error_format("cannot write %zu bytes of commands", commands.size());
  input_writes.reset();
  Result<pid_t> pid =
      run({program, {kMpsControlProgram}, environment_of(folders), &user, nullptr, nullptr, input_reads.get(), output_writes.get()});
  output_writes.reset();
  if (!pid) return pid.error();
  const auto until = std::chrono::steady_clock::now() + patience;
  std::string text;
  bool ended = false;
  while (!ended && text.size() < kOutputMost) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{output_reads.get(), POLLIN, 0};
    if (left.count() <= 0) break;
    if (poll(&ready, 1, static_cast<int>(left.count())) <= 0) continue;
    std::array<char, 4096> part{};
    const ssize_t length = read(output_reads.get(), part.data(), part.size());
    if (length < 0 && errno == EINTR) continue;
    ended = length <= 0;
    if (length > 0) text.append(part.data(), static_cast<size_t>(length));
  }
  int status = 0;
  ended = ended && ends_by(*pid, until, &status);  // it may close what it prints to, and live
  if (!ended) undead().kill_and_wait(*pid, user.uid);
  if (!ended) return error_format("%s has not answered within %lld ms", kMpsControlProgram, static_cast<long long>(patience.count()));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return error_format("%s: %.160s", kMpsControlProgram, text.empty() ? "it found no daemon" : text.substr(0, text.find('\n')).c_str());
  }
  return text;
}

void remove_mps_folders(const MpsUser& user, const MpsFolders& folders) {
  if (folders.group.empty()) return;
  const FileDescriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  Launch launch{"", {}, {}, &user, nullptr, &folders, nothing.get(), nothing.get()};
  if (const Result<pid_t> pid = run(std::move(launch))) undead().kill_and_wait(*pid, user.uid);  // it is done
}

std::vector<pid_t> pids_in(std::string_view text) {
  std::vector<pid_t> pids;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t\r");
    const size_t last = line.find_last_not_of(" \t\r");
    if (first == std::string::npos) continue;
    pid_t pid = 0;
    const char* end = line.data() + last + 1;
    const auto [at, problem] = std::from_chars(line.data() + first, end, pid);
    if (problem == std::errc() && at == end && pid > 0) pids.push_back(pid);
  }
  return pids;
}

Result<MpsUsers> list_mps_users(const std::string& program, const MpsUser& user, const MpsFolders& folders,
                                std::chrono::milliseconds patience) {
  Result<std::string> list = ask_mps_control(program, user, folders, "get_server_list\n", patience);
  if (!list) return list.error();
  MpsUsers users{pids_in(*list), {}};
  if (users.servers.empty()) return users;
  std::string commands;
  for (const pid_t server : users.servers) commands += "get_client_list " + std::to_string(server) + "\n";
  Result<std::string> clients = ask_mps_control(program, user, folders, commands, patience);
  if (!clients) return clients.error();
  for (const pid_t pid : pids_in(*clients)) users.programs.insert(pid);
  return users;
}

Result<void> write_mps_note(const MpsFolders& folders, const MpsNote& note) {
  std::ostringstream text;
  text << note.pid << ' ' << note.start_time << ' ' << note.user.gid;
  for (const gid_t group : note.user.groups) text << ' ' << group;
  text << '\n';
  const std::string beside = folders.note + ".new";
  std::ofstream file(beside, std::ios::trunc);
  file << text.str();
  file.close();
  if (!file || rename(beside.c_str(), folders.note.c_str()) != 0)
    return error_format("cannot write %.150s: %s", folders.note.c_str(), std::strerror(errno));
  return {};
}

MpsNote read_mps_note(const MpsFolders& folders, uid_t user) {
  MpsNote note;
  note.user.uid = user;
  struct stat status {};
  if (lstat(folders.note.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid()) return {};
  std::istringstream words(text_of(folders.note));
  if (!(words >> note.pid >> note.start_time >> note.user.gid) || note.pid <= 0) return {};
  for (gid_t group = 0; words >> group && note.user.groups.size() < kGroupsMost;) note.user.groups.push_back(group);
  return note;
}

// A daemon can be made to print without end by its user.
std::string last_line_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::ate);
  const auto size = static_cast<int64_t>(file.tellg());
  std::string end(static_cast<size_t>(std::clamp<int64_t>(size, 0, kLastLineMost)), '\0');
  file.seekg(std::max<int64_t>(size - kLastLineMost, 0));
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  end.resize(static_cast<size_t>(file.gcount()));
  std::istringstream lines(end);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return last.substr(0, 160);
}

FileDescriptor open_process(pid_t pid) { return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace nvshare::scheduler
