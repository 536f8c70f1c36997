// Handles that go from process to process.
#include <fcntl.h>
#include <sys/wait.h>

#include "e2e/worker/vmm_space.h"

namespace nvshare::e2e {

namespace {

constexpr uint64_t kImporterRounds = 5;

void exec_importer(const Options& options, int fd, size_t bytes) {
  std::string fd_text = std::to_string(fd);
  std::string bytes_text = std::to_string(bytes);
  std::string stop = options.text("stop", "/none");
  execl("/proc/self/exe", "e2e_worker", "vmm-import", "--fd", fd_text.c_str(), "--bytes", bytes_text.c_str(), "--stop", stop.c_str(),
        static_cast<char*>(nullptr));
  _exit(126);
}

}  // namespace

// Exports a handle to a child process, which works on the same memory; the rest of the program comes and goes meanwhile.
void run_vmm_export(const Options& options) {
  retain_primary();
  const size_t shared = 5 * kPage;
  const size_t hold = options.number("hold", 80u << 20) / kPage * kPage;
  Space space(shared + hold);
  Handle own = create(hold);
  map(space.at(shared), hold, own);
  Handle handle = create(shared);
  map(space.at(0), shared, handle);
  allow(space.at(0), shared + hold);
  space.fill(0, shared, 1);
  space.fill(shared, hold, 2);
  space.wait();
  stand_still(options);
  int fd = -1;
  check(cuda().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  say("exported");
  for (uint64_t life = 0; life < options.number("steps", 3); ++life) {
    pid_t child = fork();
    if (child == 0) {
      fcntl(fd, F_SETFD, 0);
      exec_importer(options, fd, shared);
    }
    int status = 0;
    // Meanwhile the memory of its own moves with the turns.
    for (uint64_t round = 0; waitpid(child, &status, WNOHANG) == 0; ++round) {
      space.mix(shared, hold, round);
      space.verify(shared, hold);
      usleep(1000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      fail(kExitUnexpected, "the importer ended with status %x", static_cast<unsigned>(status));
    for (uint64_t round = 0; round < kImporterRounds; ++round) space.model_mixed(0, shared, round);
    space.verify(0, shared);
    space.verify(shared, hold);
  }
  close(fd);
  unmap(space.at(0), shared + hold);
  release(handle);
  release(own);
  space.end();
  release_primary();
}

void run_vmm_import(const Options& options) {
  retain_primary();
  const size_t bytes = options.number("bytes", 0);
  const auto fd = static_cast<intptr_t>(options.number("fd", 0));
  Space space(bytes);
  Handle handle = 0;
  check(cuda().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  map(space.at(0), bytes, handle);
  release(handle);
  allow(space.at(0), bytes);
  for (uint64_t round = 0; round < kImporterRounds; ++round) space.mix(0, bytes, round);
  space.wait();
  unmap(space.at(0), bytes);
  space.end();
  release_primary();
}

}  // namespace nvshare::e2e
