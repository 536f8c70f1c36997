#include "slurm/job_comment.h"

#include <cerrno>
#include <vector>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
}

namespace nvshare::slurm {

void comment_on_job(uint32_t job, const std::string& text) {
  if (text.empty()) return;
  std::vector<char> comment(text.begin(), text.end());
  comment.push_back('\0');
  job_desc_msg_t change;
  slurm_init_job_desc_msg(&change);
  change.job_id = job;
  change.admin_comment = comment.data();
  if (slurm_update_job(&change) != SLURM_SUCCESS) slurm_verbose("nvshare: job %u takes no comment: %s", job, slurm_strerror(errno));
}

}  // namespace nvshare::slurm
