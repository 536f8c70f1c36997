#include "cli/environment.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/fd.h"

namespace nvshare::cli {
namespace {

constexpr std::array<std::string_view, 7> kContainerEngines = {"docker", "podman", "nerdctl", "ctr", "crictl", "docker-compose", "buildah"};
constexpr std::array<std::string_view, 3> kKubernetes = {"kubectl", "helm", "oc"};
constexpr std::array<std::string_view, 5> kOtherUser = {"sudo", "su", "doas", "pkexec", "runuser"};
constexpr std::array<std::string_view, 5> kElsewhere = {"ssh", "srun", "systemd-run", "mosh", "machinectl"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  for (std::string_view candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) environment.emplace(std::string(static_cast<const char*>(*entry), equals), equals + 1);
  }
  return environment;
}

std::vector<std::string> flatten(const Environment& environment) {
  std::vector<std::string> lines;
  lines.reserve(environment.size());
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

std::string append_preload(const std::string& existing, const std::string& library) {
  size_t begin = 0;
  while (begin <= existing.size()) {
    size_t end = existing.find_first_of(": ", begin);
    if (end == std::string::npos) end = existing.size();
    if (existing.compare(begin, end - begin, library) == 0) return existing;
    begin = end + 1;
  }
  return existing.empty() ? library : existing + ":" + library;
}

std::optional<std::string> wrapper_hint(const std::string& program) {
  const std::string name = base_name(program);
  if (contains(kContainerEngines, name)) {
    return "'" + name +
           "' starts programs in containers that do not see this environment; mount the scheduler's client directory and libnvshare.so "
           "into "
           "the container and set LD_PRELOAD there, for instance: docker run --gpus all -v /run/nvshare/client:/run/nvshare/client:ro "
           "-v /path/to/libnvshare.so:/usr/lib/libnvshare.so:ro -e LD_PRELOAD=/usr/lib/libnvshare.so IMAGE PROGRAM";
  }
  if (contains(kKubernetes, name))
    return "'" + name + "' only talks to a cluster; its programs run on other machines and take nothing from this environment";
  if (contains(kOtherUser, name))
    return "'" + name + "' strips the environment; put it in front instead: " + name + " nvsharectl run -- PROGRAM";
  if (contains(kElsewhere, name)) {
    return "'" + name + "' starts programs elsewhere, without this environment; start nvsharectl there instead: " + name +
           " ... nvsharectl run -- PROGRAM";
  }
  return std::nullopt;
}

std::optional<std::string> resolve_program(const std::string& program, const Environment& environment) {
  if (program.empty()) return std::nullopt;
  if (program.find('/') != std::string::npos) return is_executable_file(program) ? std::optional(program) : std::nullopt;
  const auto path = environment.find("PATH");
  std::string directories = path != environment.end() ? path->second : "/usr/local/bin:/usr/bin:/bin";
  size_t begin = 0;
  while (begin <= directories.size()) {
    size_t end = directories.find(':', begin);
    if (end == std::string::npos) end = directories.size();
    const std::string directory = end == begin ? "." : directories.substr(begin, end - begin);
    if (std::string candidate = directory + "/" + program; is_executable_file(candidate)) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

ProgramKind kind_of_program(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return ProgramKind::kOrdinary;
  if ((status.st_mode & (S_ISUID | S_ISGID)) != 0) return ProgramKind::kPrivileged;
  if (getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) return ProgramKind::kPrivileged;

  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header{};
  if (!file || pread(file.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return ProgramKind::kOrdinary;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return ProgramKind::kOrdinary;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    const auto offset = static_cast<off_t>(header.e_phoff + uint64_t{i} * header.e_phentsize);
    if (pread(file.get(), &segment, sizeof segment, offset) != static_cast<ssize_t>(sizeof segment)) return ProgramKind::kOrdinary;
    if (segment.p_type == PT_INTERP) return ProgramKind::kOrdinary;
  }
  return ProgramKind::kStatic;
}

}  // namespace nvshare::cli
