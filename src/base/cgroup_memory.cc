#include "base/cgroup_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/fd.h"

namespace nvshare {
namespace {

constexpr size_t kPathMax = 1024;
constexpr uint64_t kUnlimited = uint64_t{1} << 60;  // version 1 says "none" by a number near 2^63

// What differs between the versions.
struct Layout {
  const char* limits[2];
  const char* usage;
  const char* cache_key;  // in memory.stat, levels below included
};
constexpr Layout kVersion2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file "};
constexpr Layout kVersion1 = {{"memory.limit_in_bytes", nullptr}, "memory.usage_in_bytes", "total_inactive_file "};

// The file's beginning as text; false if it cannot be read.
bool read_text(const char* path, char* buffer, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t length = 0;
  while (length < size - 1) {
    ssize_t got = read(fd, buffer + length, size - 1 - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  close(fd);
  buffer[length] = '\0';
  return length > 0;
}

// The number in folder/file; UINT64_MAX when there is none or it says "max".
uint64_t number_in(const char* folder, const char* file) {
  char path[kPathMax];
  char text[64];
  if (snprintf(path, sizeof path, "%s/%s", folder, file) >= static_cast<int>(sizeof path)) return UINT64_MAX;
  if (!read_text(path, text, sizeof text) || text[0] < '0' || text[0] > '9') return UINT64_MAX;
  return strtoull(text, nullptr, 10);
}

uint64_t cache_in(const char* folder, const char* key) {
  char path[kPathMax];
  char text[8192];
  if (snprintf(path, sizeof path, "%s/memory.stat", folder) >= static_cast<int>(sizeof path)) return 0;
  if (!read_text(path, text, sizeof text)) return 0;
  for (const char* found = strstr(text, key); found != nullptr; found = strstr(found + 1, key)) {
    if (found == text || found[-1] == '\n') return strtoull(found + strlen(key), nullptr, 10);
  }
  return 0;
}

void look_at_level(const char* folder, const Layout& layout, CgroupRoom* room) {
  uint64_t limit = UINT64_MAX;
  for (const char* file : layout.limits) {
    uint64_t value = file != nullptr ? number_in(folder, file) : UINT64_MAX;
    if (value < kUnlimited && value < limit) limit = value;
  }
  if (limit == UINT64_MAX) return;
  uint64_t usage = number_in(folder, layout.usage);
  if (usage == UINT64_MAX) return;
  uint64_t cache = cache_in(folder, layout.cache_key);
  usage -= cache < usage ? cache : usage;
  uint64_t available = limit > usage ? limit - usage : 0;
  if (available >= room->available) return;
  room->limit = limit;
  room->available = available;
}

// The path of the line whose controllers (between the colons) are `wanted`; false if there is none. Cut at the line's end.
bool path_of(const char* cgroups, const char* wanted, char* path, size_t size) {
  for (const char* line = cgroups; *line != '\0';) {
    const char* end = strchr(line, '\n');
    if (end == nullptr) end = line + strlen(line);
    const char* first = static_cast<const char*>(memchr(line, ':', static_cast<size_t>(end - line)));
    const char* second =
        first != nullptr ? static_cast<const char*>(memchr(first + 1, ':', static_cast<size_t>(end - first - 1))) : nullptr;
    if (second != nullptr) {
      bool matches = *wanted == '\0' && second == first + 1;
      // A list such as "cpuacct,memory".
      for (const char* name = first + 1; *wanted != '\0' && name < second && !matches;) {
        const char* comma = static_cast<const char*>(memchr(name, ',', static_cast<size_t>(second - name)));
        const char* name_end = comma != nullptr ? comma : second;
        size_t length = static_cast<size_t>(name_end - name);
        matches = length == strlen(wanted) && strncmp(name, wanted, length) == 0;
        name = name_end + 1;
      }
      size_t length = static_cast<size_t>(end - second - 1);
      if (matches && length < size) {
        memcpy(path, second + 1, length);
        path[length] = '\0';
        return true;
      }
    }
    line = *end == '\0' ? end : end + 1;
  }
  return false;
}

bool is_folder(const char* path) { return static_cast<bool>(FileDescriptor(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC))); }

}  // namespace

CgroupRoom cgroup_memory_room(const char* cgroups, const char* root) {
  CgroupRoom room;
  char path[512];
  char mount[kPathMax / 2];
  char folder[kPathMax];
  const Layout* layout = &kVersion1;
  if (path_of(cgroups, "memory", path, sizeof path)) {
    if (snprintf(mount, sizeof mount, "%s/memory", root) >= static_cast<int>(sizeof mount)) return room;
  } else if (path_of(cgroups, "", path, sizeof path)) {
    layout = &kVersion2;
    if (snprintf(mount, sizeof mount, "%s", root) >= static_cast<int>(sizeof mount)) return room;
  } else {
    return room;
  }
  size_t mount_length = strlen(mount);
  int length = snprintf(folder, sizeof folder, "%s%s%s", mount, path[0] == '/' ? "" : "/", path);
  // "/.." begins the path of a process that moved out of what its cgroup namespace shows.
  if (length >= static_cast<int>(sizeof folder) || strstr(path, "/..") != nullptr || !is_folder(folder)) {
    memcpy(folder, mount, mount_length + 1);
  }
  for (;;) {
    size_t end = strlen(folder);
    while (end > mount_length && folder[end - 1] == '/') folder[--end] = '\0';
    look_at_level(folder, *layout, &room);
    if (end <= mount_length) return room;
    *strrchr(folder, '/') = '\0';
  }
}

CgroupRoom own_cgroup_memory_room() {
  char cgroups[4096];
  if (!read_text("/proc/self/cgroup", cgroups, sizeof cgroups)) return {};
  const char* root = getenv(kCgroupRootVariable);
  return cgroup_memory_room(cgroups, root != nullptr && *root != '\0' ? root : kCgroupRoot);
}

}  // namespace nvshare
