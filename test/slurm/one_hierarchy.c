// Preloaded into slurmd by version_2.sh: /proc/PID/cgroup has the line of version 2 alone, so that slurmd uses it. What it makes there is
// real.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

typedef int (*Open)(const char*, int, ...);
typedef FILE* (*OpenStream)(const char*, const char*);

static int is_cgroup(const char* path) {
  const size_t length = strlen(path);
  return strncmp(path, "/proc/", 6) == 0 && length > 7 && strcmp(path + length - 7, "/cgroup") == 0;
}

static int open_filtered(const char* path) {
  char text[8192];
  const int in = ((Open)dlsym(RTLD_NEXT, "open"))(path, O_RDONLY | O_CLOEXEC);
  if (in < 0) return in;
  const ssize_t length = read(in, text, sizeof text - 1);
  close(in);
  text[length > 0 ? length : 0] = '\0';
  const int out = memfd_create("cgroup", MFD_CLOEXEC);
  char* rest = NULL;
  for (char* line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    if (strncmp(line, "0::", 3) == 0) dprintf(out, "%s\n", line);
  }
  lseek(out, 0, SEEK_SET);
  return out;
}

static int open_as(const char* name, const char* path, int flags, mode_t mode) {
  return is_cgroup(path) ? open_filtered(path) : ((Open)dlsym(RTLD_NEXT, name))(path, flags, mode);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_as("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_as("open64", path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return is_cgroup(path) ? fdopen(open_filtered(path), "r") : ((OpenStream)dlsym(RTLD_NEXT, "fopen"))(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return is_cgroup(path) ? fdopen(open_filtered(path), "r") : ((OpenStream)dlsym(RTLD_NEXT, "fopen64"))(path, mode);
}
