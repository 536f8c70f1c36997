// Slurm's own books: the AdminComment of a job, which scontrol shows and, with slurmdbd, sacct. Root's alone to write.
#pragma once

#include <cstdint>
#include <string>

namespace nvshare::slurm {

// One message to slurmctld; nothing where `text` is empty. What is wrong is logged.
void comment_on_job(uint32_t job, const std::string& text);

}  // namespace nvshare::slurm
