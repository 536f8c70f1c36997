#include "kubernetes/devices/install.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "base/fnv.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

// Block by block: a library of megabytes twice in memory is more than the plugin needs for all else.
bool has_content(const std::string& path, std::string_view wanted) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  char block[65536];
  while (true) {
    const ssize_t count = read(file.get(), block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0 && wanted.empty();
    if (!wanted.starts_with(std::string_view(block, static_cast<size_t>(count)))) return false;
    wanted.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

Result<InstalledFiles> install_files(const std::string& library, const std::string& install_dir, const std::string& version) {
  Result<std::string> content = read_file(library);
  if (!content) return content.error();
  if (content->compare(0, 4,
                       "\x7f"
                       "ELF") != 0)
    return error_format("%.200s is no shared library", library.c_str());
  if (auto ok = make_folder(install_dir); !ok) return ok.error();
  // Builds of one version differ in it; a file of that name is compared byte by byte.
  const std::string hash = fnv_1a_text(*content);
  InstalledFiles files;
  files.library = install_dir + "/lib/libnvshare-" + version + "-" + hash + ".so";
  files.preload = install_dir + "/lib/ld.so.preload";
  std::string preload = std::string(kContainerLibrary) + "\n";
  for (const auto& [path, wanted] :
       {std::pair<const std::string&, const std::string&>{files.library, *content}, {files.preload, preload}}) {
    if (has_content(path, wanted)) continue;  // its inode stays: containers have it mounted
    if (auto ok = write_file_atomically(path, wanted); !ok) return ok.error();
  }
  return files;
}

}  // namespace nvshare::kubernetes
