// What the programs of this layer have in common: their command line, and where the library lies that came with them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kubernetes/settings.h"

namespace nvshare::kubernetes {

inline constexpr int kExitWrongUse = 2;

// Gives `app` a flag for each setting, and reads the command line. A number: the program ends with it (help, version, wrong use).
std::optional<int> parse_command_line(CLI::App& app, const std::vector<SettingSpec>& specs, int argc, char** argv, settings::Texts* given);

// libnvshare.so where a package, the tarball or the build puts it, seen from this program.
std::string own_library();

// Logging to standard error at the settings' level.
void begin_log(const char* program, const Settings& settings);

// So that all threads leave SIGTERM and SIGINT (and `also`) to the one that calls wait_for_end; SIGPIPE is ignored, because TLS writes to
// what has gone away. Before any thread starts.
void keep_end_signals(int also = 0);
int wait_for_end(int also = 0);  // the signal

}  // namespace nvshare::kubernetes
