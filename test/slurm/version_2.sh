#!/usr/bin/env bash
# slurm_test.py with cgroups of version 2, on a machine that has hierarchies of version 1 as well, where slurmd refuses to use version 2:
# in a mount namespace with version 2 alone, with a library in slurmd that hides the others from /proc/PID/cgroup. Arguments: slurm_test.py's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" != --inside ]; then exec unshare --mount "$0" --inside "$@"; fi
shift
mount --make-rprivate /
umount --lazy /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
library=$(mktemp --suffix=.so)
trap 'rm -f "$library"; rmdir /sys/fs/cgroup/system.slice 2>/dev/null || true' EXIT
cc -shared -fPIC -O1 -o "$library" "$here/one_hierarchy.c" -ldl
NVSHARE_TEST_CGROUPS=2 NVSHARE_TEST_SLURMD_PRELOAD=$library python3 "$here/slurm_test.py" "$@"
