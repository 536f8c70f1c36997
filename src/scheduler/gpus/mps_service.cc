#include "scheduler/gpus/mps_service.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "scheduler/log.h"
#include "scheduler/tenants/admin_peers.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {
namespace {

constexpr std::chrono::milliseconds kAskPatience{2'000};
constexpr std::chrono::milliseconds kAskPatienceAtEnd{1'000};
constexpr int kQuitPatienceMs = 2'000;           // at the end
constexpr std::chrono::seconds kEndPatience{5};  // for all daemons of a user, who may have stopped them

protocol::MpsGroup message_of(protocol::MpsState state, const std::string& directory, const std::string& reason) {
  protocol::MpsGroup message{};
  message.state = static_cast<uint8_t>(state);
  std::strncpy(message.directory, directory.c_str(), sizeof message.directory - 1);
  std::strncpy(message.reason, reason.c_str(), sizeof message.reason - 1);
  return message;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "has ended with exit status " + std::to_string(WEXITSTATUS(status));
}

bool ends_within(const FileDescriptor& pidfd, int milliseconds) {
  pollfd ready{pidfd.get(), POLLIN, 0};
  return poll(&ready, 1, milliseconds) > 0;
}

}  // namespace

MpsService::MpsService(EventLoop& loop, Options options, Callbacks callbacks)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      timer_(loop, [this] { perform(groups_.deadline_reached(monotonic_ns())); }) {
  if (Result<std::string> program = find_mps_control()) {
    program_ = *program;
  } else {
    no_program_ = program.error().text;
  }
  if (options_.on && program_.empty()) spdlog::warn("mps is on, but no program will use it: {}", no_program_);
  adopt_all();
}

MpsService::~MpsService() {
  jobs_.end();
  try {
    end_unused();
  } catch (const std::exception& problem) {
    spdlog::warn("MPS daemons stay: {}", problem.what());
  }
}

void MpsService::adopt_all() {
  const std::string base = MpsFolders::of(options_.runtime_dir, {}).base;
  DIR* folder = opendir(base.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    if (const auto group = group_of_note(entry->d_name); group && groups_.has_room_for(*group)) adopt(*group);
  }
  closedir(folder);
  rearm();
}

void MpsService::adopt(const TrustGroup& group) {
  MpsFolders folders = MpsFolders::of(options_.runtime_dir, group);
  const MpsNote note = read_mps_note(folders, group.user);
  FileDescriptor pidfd = note.pid > 0 ? open_process(note.pid) : FileDescriptor();
  // Its number may be another's by now.
  if (!pidfd || program_.empty() || start_time_if_alive(note.pid) != note.start_time) {
    unlink(folders.note.c_str());
    if (!group.name.empty()) unlink(folders.output.c_str());
    return;
  }
  spdlog::info("MPS of {}: its daemon (pid {}) of an earlier scheduler goes on", group.text(), note.pid);
  Daemon& daemon = daemons_[group];
  daemon.user = note.user;
  daemon.folders = std::move(folders);
  daemon.pid = note.pid;
  daemon.pidfd = std::move(pidfd);
  watch(group, daemon);
  groups_.adopted(group, note.pid, options_.on, monotonic_ns());
}

void MpsService::watch(const TrustGroup& group, Daemon& daemon) {
  daemon.watch = Watch(loop_, daemon.pidfd.get(), [this, group] { daemon_ended(TrustGroup(group)); });
}

void MpsService::ask(MpsGroups::Asker asker, pid_t pid, const TrustGroup& group) {
  const uid_t user = group.user;
  const auto refuse = [&](const std::string& why) { callbacks_.answer(asker, message_of(protocol::MpsState::kCannot, "", why)); };
  if (!options_.on) return callbacks_.answer(asker, message_of(protocol::MpsState::kOff, "", ""));
  if (program_.empty()) return refuse(no_program_);
  if (std::string obstacle = options_.obstacle ? options_.obstacle() : ""; !obstacle.empty()) return refuse(obstacle);
  const std::string status = status_text_of(pid);
  if (auto ok = is_outside_containers(pid, status); !ok) return refuse(ok.error().text);
  Result<MpsUser> asks_as = mps_user_of(user, status);
  if (!asks_as) return refuse(asks_as.error().text);
  if (user != geteuid() && geteuid() != 0) {
    return refuse("this scheduler runs as user " + std::to_string(geteuid()) + " and can start no daemon for user " + std::to_string(user));
  }
  const MpsGroups::Actions actions = groups_.asked(group, asker, monotonic_ns());
  if (groups_.knows(group)) {
    Daemon& daemon = daemons_[group];
    if (daemon.pid == 0) {
      daemon.user = std::move(*asks_as);
      daemon.folders = MpsFolders::of(options_.runtime_dir, group);
    }
  }
  perform(actions);
}

void MpsService::joined(uid_t user) { perform(groups_.joined(user, monotonic_ns())); }

void MpsService::perform(const MpsGroups::Actions& actions) {
  struct Performer {
    MpsService& service;
    void operator()(const MpsGroups::Start& action) const { service.start(action.group); }
    void operator()(const MpsGroups::Look& action) const { service.look(action.group); }
    void operator()(const MpsGroups::Quit& action) const { service.quit(action.group); }
    void operator()(const MpsGroups::Kill& action) const { service.kill_daemon(action.group); }
    void operator()(const MpsGroups::Answer& action) const {
      const bool serves = action.refusal.empty();
      service.callbacks_.answer(action.asker,
                                message_of(serves ? protocol::MpsState::kServes : protocol::MpsState::kCannot,
                                           serves ? MpsFolders::of(service.options_.runtime_dir, action.group).pipes : "", action.refusal));
    }
    void operator()(const MpsGroups::Attached& action) const { service.callbacks_.attached(action); }
    void operator()(const MpsGroups::Forget& action) const { service.forget(action.group); }
    void operator()(const MpsGroups::Note& action) const {
      if (action.warning) {
        spdlog::warn("{}", action.text);
      } else {
        spdlog::info("{}", action.text);
      }
    }
  };
  for (const MpsGroups::Action& action : actions) std::visit(Performer{*this}, action);
  rearm();
}

void MpsService::start(const TrustGroup& group) {
  const Daemon& daemon = daemons_.at(group);
  jobs_.later(group.user, [this, group, who = daemon.user, folders = daemon.folders, program = program_] {
    auto started = std::make_shared<Result<MpsDaemon>>(start_mps_daemon(program, who, folders));
    if (*started) {
      const MpsNote note{(*started)->pid, start_time_of((*started)->pid), who};
      if (auto ok = write_mps_note(folders, note); !ok) spdlog::warn("{}; the next scheduler will not know it", ok.error().text);
    }
    loop_.post([this, group, started] {
      if (!*started) return perform(groups_.not_started(group, started->error().text, monotonic_ns()));
      Daemon& runs = daemons_.at(group);
      runs.pid = (*started)->pid;
      runs.is_child = true;
      runs.pidfd = std::move((*started)->pidfd);
      watch(group, runs);
      perform(groups_.started(group, runs.pid, monotonic_ns()));
    });
  });
}

void MpsService::look(const TrustGroup& group) {
  const Daemon& daemon = daemons_.at(group);
  jobs_.later(group.user, [this, group, who = daemon.user, folders = daemon.folders, program = program_, pid = daemon.pid] {
    Result<MpsUsers> users = list_mps_users(program, who, folders, kAskPatience);
    MpsGroups::Looked seen;
    seen.answered = static_cast<bool>(users);
    if (users) seen.servers = std::move(users->servers);
    if (users) seen.programs = std::move(users->programs);
    loop_.post([this, group, pid, seen = std::move(seen)] {
      const auto at = daemons_.find(group);
      if (at != daemons_.end() && at->second.pid == pid) perform(groups_.looked(group, seen, monotonic_ns()));
    });
  });
}

void MpsService::quit(const TrustGroup& group) {
  const Daemon& daemon = daemons_.at(group);
  spdlog::info("MPS of {}: nobody uses it: its daemon (pid {}) is asked to end", group.text(), daemon.pid);
  jobs_.later(group.user, [who = daemon.user, folders = daemon.folders, program = program_] {
    // What comes of it is seen by the daemon's end.
    static_cast<void>(ask_mps_control(program, who, folders, "quit\n", kAskPatience));
  });
}

void MpsService::kill_daemon(const TrustGroup& group) {
  const Daemon& daemon = daemons_.at(group);
  if (daemon.pid > 0) kill(-daemon.pid, SIGKILL);  // its session: the servers too
}

void MpsService::daemon_ended(const TrustGroup& group) {
  Daemon& daemon = daemons_.at(group);
  if (daemon.pid == 0 || !has_ended(daemon.pidfd)) return;
  std::string how = "has ended";
  int status = 0;
  // Servers that it left behind: no program reaches them any more. Before its number can be another's.
  if (daemon.is_child) kill(-daemon.pid, SIGKILL);
  if (daemon.is_child && waitpid(daemon.pid, &status, WNOHANG) == daemon.pid) how = how_it_ended(status);
  // What it said last tells why, unless something ended it.
  if (const std::string said = last_line_of_file(daemon.folders.output); !said.empty() && !WIFSIGNALED(status))
    how += " (" + printable(said.c_str()) + ")";
  unlink(daemon.folders.note.c_str());
  daemon.watch = {};
  daemon.pidfd.reset();
  daemon.pid = 0;
  daemon.is_child = false;
  perform(groups_.ended(group, how, monotonic_ns()));
}

// Its user's next job: one that asks for it again meanwhile has a daemon after that.
void MpsService::forget(const TrustGroup& group) {
  const auto at = daemons_.find(group);
  if (at == daemons_.end()) return;
  if (!group.name.empty()) {
    jobs_.later(group.user, [who = at->second.user, folders = at->second.folders] { remove_mps_folders(who, folders); });
    unlink(at->second.folders.output.c_str());
  }
  daemons_.erase(at);
}

void MpsService::rearm() {
  if (const auto deadline = groups_.next_deadline()) {
    timer_.arm(*deadline);
  } else {
    timer_.cancel();
  }
}

void MpsService::end_unused() {
  const auto until = std::chrono::steady_clock::now() + kEndPatience;
  UserJobs jobs(MpsGroups::kUsersMost);
  for (auto& entry : daemons_) {
    jobs.later(entry.first.user, [this, until, &group = entry.first, &daemon = entry.second] {
      if (std::chrono::steady_clock::now() >= until) {
        spdlog::warn("MPS of {}: others of that user took long to answer: its daemon stays; the next scheduler takes it over",
                     group.text());
        return;
      }
      if (!end_unless_used(group, daemon) || group.name.empty()) return;
      remove_mps_folders(daemon.user, daemon.folders);
      unlink(daemon.folders.output.c_str());
    });
  }
  jobs.finish();
}

// Whether none runs any more.
bool MpsService::end_unless_used(const TrustGroup& group, Daemon& daemon) {
  if (daemon.pid == 0) {  // started a moment ago, perhaps
    const MpsNote note = read_mps_note(daemon.folders, group.user);
    daemon.pidfd = note.pid > 0 ? open_process(note.pid) : FileDescriptor();
    if (!daemon.pidfd || start_time_if_alive(note.pid) != note.start_time) return true;
    daemon.pid = note.pid;
  }
  const Result<MpsUsers> users = list_mps_users(program_, daemon.user, daemon.folders, kAskPatienceAtEnd);
  if (users && !users->programs.empty()) {
    spdlog::info("MPS of {}: its daemon (pid {}) stays, {} programs use it; the next scheduler takes it over", group.text(), daemon.pid,
                 users->programs.size());
    return false;
  }
  static_cast<void>(ask_mps_control(program_, daemon.user, daemon.folders, "quit\n", kAskPatienceAtEnd));
  if (!ends_within(daemon.pidfd, kQuitPatienceMs)) kill(-daemon.pid, SIGKILL);
  waitpid(daemon.pid, nullptr, WNOHANG);
  unlink(daemon.folders.note.c_str());
  return true;
}

}  // namespace nvshare::scheduler
