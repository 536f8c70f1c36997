// nvshare-slurm-step JOB FOLDER SECONDS: started by the plugin beside each step's tasks, with all signals blocked; ends with the step's
// container.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/parse.h"
#include "slurm/options.h"
#include "slurm/step_watch.h"

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "--version") == 0) {
    std::puts(NVSHARE_VERSION);
    return 0;
  }
  const auto job = nvshare::parse_integer(count == 4 ? arguments[1] : "", 1, UINT32_MAX);
  const auto seconds = nvshare::parse_integer(count == 4 ? arguments[3] : "", 0, nvshare::slurm::kSuspendTimeMax);
  if (!job || !seconds) {
    std::fputs("usage: nvshare-slurm-step JOB FOLDER SECONDS   (started by nvshare_spank.so)\n", stderr);
    return 2;
  }
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  nvshare::slurm::StepWatch(static_cast<uint32_t>(*job), arguments[2], getppid(), static_cast<int>(*seconds)).run();
}
