// The environment of a program that `nvsharectl run` starts, and what can be said about that program before and after. Thread-safe as long
// as nobody changes the process's own environment.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nvshare::cli {

using Environment = std::map<std::string, std::string>;

Environment current_environment();

// NAME=value lines, as execve takes them.
std::vector<std::string> flatten(const Environment& environment);

// `existing` (entries separated by colons or blanks, as ld.so takes them; may be empty) with `library` at its end, unless it is in it.
std::string append_preload(const std::string& existing, const std::string& library);

// Programs whose CUDA work happens in processes that do not inherit our environment (container engines, sudo, ssh): what to do instead, in
// a sentence. Nothing for all others. `program` is a path or a name.
std::optional<std::string> wrapper_hint(const std::string& program);

// The file that execvp would run for `program`, with the PATH of `environment`; nothing when there is none.
std::optional<std::string> resolve_program(const std::string& program, const Environment& environment);

enum class ProgramKind {
  kOrdinary,
  kStatic,      // statically linked: the dynamic loader, and so LD_PRELOAD, is never involved
  kPrivileged,  // setuid, setgid or with file capabilities: the loader ignores LD_PRELOAD from outside the system's own directories
};

// Looks at the file's mode and ELF headers. Unreadable files and scripts are kOrdinary.
ProgramKind kind_of_program(const std::string& path);

}  // namespace nvshare::cli
