#include "cli/scheduler_link.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/fd.h"
#include "cli/proc.h"
#include "cli/process.h"
#include "protocol/paths.h"

namespace nvshare::cli {
namespace {

constexpr auto kStartPatience = std::chrono::seconds(10);
constexpr auto kStartPoll = std::chrono::milliseconds(10);
constexpr char kLogFile[] = "/scheduler.log";

// Whether somebody listens on the clients' socket of this runtime directory. A client connection without a message is nobody's client.
bool clients_are_served(const std::string& runtime_directory) {
  const std::string path = runtime_directory + protocol::kClientSocket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FileDescriptor probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  return probe && connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::optional<SchedulerLink> look_at(const std::string& runtime_directory) {
  SchedulerLink link;
  link.runtime_directory = runtime_directory;
  const auto has_admin = [&] {
    auto admin = AdminConnection::open(runtime_directory);
    if (admin) {
      link.admin = std::move(*admin);
    } else {
      link.admin_error = admin.error().text;
    }
    return link.admin.has_value();
  };
  if (has_admin()) return link;
  if (!clients_are_served(runtime_directory)) return std::nullopt;
  has_admin();  // a scheduler that has just begun listens there before it does for clients
  return link;
}

// Whether it is there and ours alone. What somebody else made there, or could put there, is nobody's scheduler: it would say which
// processes we are to end, and lend our programs the memory that their data go to.
Result<bool> is_ours(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return error_format("cannot look at %s: %s", path.c_str(), strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) return error_format("%s is not a directory; remove it, or set NVSHARE_RUNTIME_DIR", path.c_str());
  if (status.st_uid != geteuid())
    return error_format("%s belongs to another user; set NVSHARE_RUNTIME_DIR to a directory of yours", path.c_str());
  if ((status.st_mode & 022) != 0) return error_format("%s is writable for others; chmod 700 it", path.c_str());
  return true;
}

// Whether what is ours in this folder stays where it is: nobody else can rename it.
bool keeps_what_is_ours(const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  if (status.st_uid != geteuid() && status.st_uid != 0) return false;
  return (status.st_mode & 022) == 0 || (status.st_mode & S_ISVTX) != 0;
}

Result<void> claim_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return error_format("cannot make %s: %s", path.c_str(), strerror(errno));
  const auto ours = is_ours(path);
  if (!ours) return ours.error();
  return {};
}

// Starts the daemon away from our terminal and session, so that it outlives us and hears no Ctrl-C. Its output goes to a file.
Result<pid_t> start_daemon(const std::string& program, const std::string& runtime_directory, const std::string& log_path) {
  const FileDescriptor log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) return error_format("cannot write %s: %s", log_path.c_str(), strerror(errno));
  Spawn daemon;
  daemon.argv = {program, "--exit-when-idle"};
  daemon.environment = current_environment();
  daemon.environment[protocol::kRuntimeDirectoryVariable] = runtime_directory;
  daemon.environment.erase("LD_PRELOAD");
  daemon.output = log.get();
  daemon.no_input = true;
  daemon.own_session = true;
  return spawn(daemon);
}

Result<SchedulerLink> start_scheduler(const Installation& installation, const std::string& runtime_directory) {
  if (auto ok = claim_directory(runtime_directory); !ok) return ok.error();
  const std::string lock_path = runtime_directory + "/start.lock";
  FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock || flock(lock.get(), LOCK_EX) != 0) return error_format("cannot lock %s: %s", lock_path.c_str(), strerror(errno));
  // Whoever had the lock before us may have started it.
  if (auto link = look_at(runtime_directory); link && link->admin) {
    link->own = true;
    return std::move(*link);
  }

  auto program = installation.program("nvshare-scheduler");
  if (!program) return program.error();
  const std::string log_path = runtime_directory + kLogFile;
  auto pid = start_daemon(*program, runtime_directory, log_path);
  if (!pid) return pid.error();
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto link = look_at(runtime_directory); link && link->admin) {
      link->own = true;
      link->started = true;
      return std::move(*link);
    }
    int status = 0;
    if (waitpid(*pid, &status, WNOHANG) == *pid) {
      return error_format("%.80s ended at once (exit code %d): %.140s", program->c_str(), exit_code_of(status),
                          last_line_of(log_path).c_str());
    }
    std::this_thread::sleep_for(kStartPoll);
  }
  return error_format("%s did not answer within 10 s; %s may say why", program->c_str(), log_path.c_str());
}

// Empty: none is.
Result<std::string> configured_directory() {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - sizeof protocol::kClientSocket;
  const char* configured = std::getenv(protocol::kRuntimeDirectoryVariable);
  if (configured == nullptr || *configured == '\0') return std::string();
  if (*configured != '/')
    return error_format("NVSHARE_RUNTIME_DIR: '%.80s' is not an absolute path; accepted: one that begins with /", configured);
  if (std::strlen(configured) > kMost)
    return error_format("NVSHARE_RUNTIME_DIR: '%.40s...' is too long for the sockets in it; accepted: at most %zu characters", configured,
                        kMost);
  return std::string(configured);
}

// Null, or what the file is instead of a library that the loader takes.
const char* no_library(const char* path) {
  struct stat status {};
  if (stat(path, &status) != 0) return strerror(errno);
  std::array<char, 5> begin{};  // of ELF, of 64 bits
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  if (!S_ISREG(status.st_mode)) return "it is no file";
  if (access(path, R_OK) != 0) return strerror(errno);
  return std::memcmp(begin.data(),
                     "\x7f"
                     "ELF\x02",
                     begin.size()) == 0
             ? nullptr
             : "it is no library of a 64-bit machine";
}

}  // namespace

Result<Installation> Installation::of_this_program() {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return error_format("cannot find out where this program is: %s", has_proc() ? strerror(errno) : kNoProc);
  std::string text(path, static_cast<size_t>(length));
  text.erase(text.find_last_of('/'));  // the program's name
  size_t parent = text.find_last_of('/');
  return Installation{parent == std::string::npos ? std::string() : text.substr(0, parent)};
}

Result<std::string> Installation::program(const std::string& name) const {
  const std::string beside = root + "/bin/" + name;
  if (access(beside.c_str(), X_OK) == 0) return beside;
  if (auto found = resolve_program(name, current_environment())) return *found;
  return error_format("cannot find %s, neither at %s nor in PATH", name.c_str(), beside.c_str());
}

// In LD_PRELOAD a name ends there, and nothing quotes it.
static bool can_be_preloaded(const std::string& path) { return path.find_first_of(" :") == std::string::npos; }

static Result<std::string> preloadable(const std::string& path) {
  if (can_be_preloaded(path)) return path;
  return error_format(
      "'%.100s' cannot be preloaded: for the loader its name ends at a blank or ':'; install it elsewhere, or set "
      "NVSHARE_LIBRARY to a link to it without them",
      path.c_str());
}

Result<std::string> Installation::library() const {
  if (const char* configured = std::getenv("NVSHARE_LIBRARY"); configured != nullptr && *configured != '\0') {
    if (const char* fault = no_library(configured))
      return error_format("NVSHARE_LIBRARY is '%.120s': %s; accepted: the path of libnvshare.so", configured, fault);
    char absolute[PATH_MAX];  // programs may change their folder
    std::string found = realpath(configured, absolute) != nullptr ? absolute : configured;
    return preloadable(can_be_preloaded(found) || *configured != '/' ? found : configured);
  }
  const std::array<std::string, 2> places = {root + "/lib/libnvshare.so", root + "/lib/nvshare/libnvshare.so"};
  for (const std::string& place : places) {
    if (access(place.c_str(), R_OK) == 0) return preloadable(place);
  }
  return error_format("cannot find libnvshare.so at %s; set NVSHARE_LIBRARY to its path", places[0].c_str());
}

std::string last_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? path + " is empty" : last;
}

std::string own_runtime_directory() {
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && *xdg == '/' && keeps_what_is_ours(xdg)) return std::string(xdg) + "/nvshare";
  return "/tmp/nvshare-" + std::to_string(geteuid());
}

std::optional<std::string> own_log() {
  const std::string folder = own_runtime_directory();
  const std::string file = folder + kLogFile;
  const auto ours = is_ours(folder);
  if (!ours || !*ours || access(file.c_str(), R_OK) != 0) return std::nullopt;
  return file;
}

Result<SchedulerLink> find_scheduler() {
  const auto configured = configured_directory();
  if (!configured) return configured.error();
  if (!configured->empty()) {
    if (auto link = look_at(*configured)) {
      const auto ours = is_ours(*configured);
      link->own = link->admin && ours && *ours && *configured != protocol::kRuntimeDirectoryDefault;
      return std::move(*link);
    }
    return error_format("no scheduler answers in %s (NVSHARE_RUNTIME_DIR); 'nvsharectl run' starts one there", configured->c_str());
  }
  if (auto link = look_at(protocol::kRuntimeDirectoryDefault)) return std::move(*link);
  const std::string own = own_runtime_directory();
  const auto ours = is_ours(own);
  if (!ours) return error_format("no scheduler answers in %s, and %s", protocol::kRuntimeDirectoryDefault, ours.error().text);
  if (auto link = *ours ? look_at(own) : std::nullopt; link && link->admin) {
    link->own = true;
    return std::move(*link);
  }
  return error_format("no scheduler answers, neither in %s nor in %s; 'nvsharectl run' starts one", protocol::kRuntimeDirectoryDefault,
                      own.c_str());
}

Result<SchedulerLink> find_or_start_scheduler(const Installation& installation) {
  auto found = find_scheduler();
  if (found) return found;
  const auto configured = configured_directory();
  if (!configured) return configured.error();
  return start_scheduler(installation, configured->empty() ? own_runtime_directory() : *configured);
}

}  // namespace nvshare::cli
