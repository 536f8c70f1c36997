#include "kubernetes/devices/runtime_config.h"

#include <glob.h>
#include <spdlog/spdlog.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <vector>

#include "base/result.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using State = RuntimeCdi::State;

constexpr size_t kFilesMost = 64;

constexpr char kContainerd1[] = "io.containerd.grpc.v1.cri";
constexpr char kContainerd2[] = "io.containerd.cri.v1.runtime";
constexpr int64_t kVersionOfContainerd2 = 3;

// What the files say, the later one's word before the earlier one's.
struct Said {
  std::string where;  // the file that said it last
  std::optional<bool> enabled;
  std::vector<std::string> dirs = {"/etc/cdi", "/var/run/cdi"};  // of both runtimes, unless they say others
  int64_t version = 0;
  std::string unseen;  // an import that lies elsewhere
};

Result<toml::table> parse_file(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text) return text.error();
  try {
    return toml::parse(*text);
  } catch (const toml::parse_error& problem) {
    return error_format("%s, line %u: %.160s", path.c_str(), problem.source().begin.line, std::string(problem.description()).c_str());
  }
}

// Files of a pattern with * in its last part, as containerd and CRI-O name them, in the order in which they read them.
std::vector<std::string> files_of(const std::string& pattern) {
  std::vector<std::string> files;
  glob_t found{};
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  std::sort(files.begin(), files.end());
  if (files.size() > kFilesMost) files.resize(kFilesMost);
  return files;
}

template <typename Node>
void take_dirs(const Node& node, Said* said) {
  const toml::array* dirs = node.as_array();
  if (dirs == nullptr) return;
  said->dirs.clear();
  for (const toml::node& dir : *dirs) said->dirs.push_back(dir.value_or(std::string()));
}

void take_containerd(const toml::table& file, const std::string& path, Said* said) {
  said->version = std::max(said->version, file["version"].value_or(int64_t{0}));
  for (const char* plugin : {kContainerd1, kContainerd2}) {
    const auto section = file["plugins"][plugin];
    if (const auto enabled = section["enable_cdi"].value<bool>()) {
      said->enabled = enabled;
      said->where = path;
    }
    take_dirs(section["cdi_spec_dirs"], said);
  }
}

Result<Said> read_containerd(const std::string& folder) {
  const std::string path = folder + "/config.toml";
  Result<toml::table> main_file = parse_file(path);
  if (!main_file) return main_file.error();
  Said said{.where = path};
  take_containerd(*main_file, path, &said);
  const toml::array* imports = (*main_file)["imports"].as_array();
  for (size_t i = 0; imports != nullptr && i < std::min(imports->size(), kFilesMost); ++i) {
    const std::string named = imports->get(i)->value_or(std::string());
    const std::string pattern = (named.starts_with('/') ? fs::path(named) : fs::path(folder) / named).lexically_normal().string();
    if (!pattern.starts_with(folder + "/")) {
      said.unseen = pattern;
      continue;
    }
    for (const std::string& file : files_of(pattern)) {
      Result<toml::table> imported = parse_file(file);
      if (!imported) return imported.error();
      take_containerd(*imported, file, &said);
    }
  }
  return said;
}

Result<Said> read_crio(const std::string& folder) {
  std::vector<std::string> files = files_of(folder + "/crio.conf.d/*");
  std::error_code ignored;
  if (fs::exists(folder + "/crio.conf", ignored)) files.insert(files.begin(), folder + "/crio.conf");
  Said said{.where = folder, .enabled = true};  // it has no switch
  for (const std::string& file : files) {
    Result<toml::table> parsed = parse_file(file);
    if (!parsed) return parsed.error();
    const auto dirs = (*parsed)["crio"]["runtime"]["cdi_spec_dirs"];
    if (dirs.is_array()) said.where = file;
    take_dirs(dirs, &said);
  }
  return said;
}

// /var/run is /run.
std::string plain(std::string path) {
  path = fs::path(path + "/").lexically_normal().string();
  return path.starts_with("/var/run/") ? path.substr(4) : path;
}

RuntimeCdi answer_of(const Said& said, const std::string& cdi_dir, const std::string& needs) {
  const auto ours = [&](const std::string& dir) { return plain(dir) == plain(cdi_dir); };
  if (said.enabled == false) return {State::kOff, said.where + " has CDI off: " + needs};
  if (!said.enabled && said.version < kVersionOfContainerd2) {
    const std::string unseen = said.unseen.empty() ? "" : ", and " + said.unseen + ", which it imports, is not seen here";
    return {State::kNotSaid,
            said.where + " does not say enable_cdi, which containerd 1.7 has off and containerd 2 on" + unseen + ": " + needs};
  }
  if (std::none_of(said.dirs.begin(), said.dirs.end(), ours)) {
    std::string dirs;
    for (const std::string& dir : said.dirs) dirs += (dirs.empty() ? "" : ", ") + dir;
    return {State::kOff, said.where + " has CDI specifications in " + (dirs.empty() ? "no folder" : dirs) +
                             " only, and those of nvshare are in " + cdi_dir + " (NVSHARE_CDI_DIR): add that to cdi_spec_dirs"};
  }
  return {State::kOn, said.where + (said.enabled ? " has CDI on" : " is of containerd 2, which has CDI on")};
}

}  // namespace

RuntimeCdi cdi_of_runtime(const std::string& folder, const std::string& cdi_dir) {
  std::error_code ignored;
  const bool containerd = fs::exists(folder + "/config.toml", ignored);
  const bool crio = fs::exists(folder + "/crio.conf", ignored) || fs::exists(folder + "/crio.conf.d", ignored);
  if (!containerd && !crio) {
    return {State::kNotSaid, folder +
                                 " has neither config.toml (containerd) nor crio.conf or crio.conf.d (CRI-O); a runtime without a file has "
                                 "its own defaults: containerd 1.7 CDI off, containerd 2 and CRI-O on"};
  }
  const Result<Said> said = containerd ? read_containerd(folder) : read_crio(folder);
  if (!said) return {State::kUnreadable, std::string("whether the container runtime has CDI on is not known: ") + said.error().text};
  const std::string section = said->version >= kVersionOfContainerd2 ? kContainerd2 : kContainerd1;
  return answer_of(
      *said, cdi_dir,
      "containers get no library and no limit until it has enable_cdi = true in [plugins.\"" + section + "\"] and is started again");
}

void log_cdi_of_runtime(const std::string& folder, const std::string& cdi_dir) {
  if (folder.empty()) return;
  const RuntimeCdi cdi = cdi_of_runtime(folder, cdi_dir);
  switch (cdi.state) {
    case State::kOn:
      return spdlog::info("container runtime: {}", cdi.text);
    case State::kOff:
      return spdlog::error("container runtime: {}", cdi.text);
    case State::kNotSaid:
    case State::kUnreadable:
      return spdlog::warn("container runtime: {}", cdi.text);
  }
}

}  // namespace nvshare::kubernetes
