// nvshare-slurm-step JOB FOLDER: started by the plugin beside each step's tasks, with all signals blocked; ends with the step's container.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "base/parse.h"
#include "slurm/step_watch.h"

int main(int count, char** arguments) {
  const auto job = nvshare::parse_integer(count == 3 ? arguments[1] : "", 1, UINT32_MAX);
  if (!job) {
    std::fputs("usage: nvshare-slurm-step JOB FOLDER   (started by nvshare_spank.so)\n", stderr);
    return 2;
  }
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  nvshare::slurm::StepWatch(static_cast<uint32_t>(*job), arguments[2], getppid()).run();
}
