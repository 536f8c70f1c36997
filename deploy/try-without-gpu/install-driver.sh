#!/bin/sh
# Does on a node what NVIDIA's driver and `nvidia-ctk cdi generate` do: puts the stand-in's libraries there, and describes its GPUs by CDI, so
# that containers get them.
#   install-driver.sh [ROOT]       ROOT: before all paths of the node; empty by default
# Other places: STAND_IN (of the libraries to install), PLUGIN (nvshare-device-plugin, which says which GPUs there are).
set -eu

root=${1:-}
stand_in=${STAND_IN:-/usr/lib/nvshare-stand-in}
plugin=${PLUGIN:-/usr/bin/nvshare-device-plugin}
libraries=/var/lib/nvshare/stand-in
containers=/usr/lib/x86_64-linux-gnu
[ "$(uname -m)" != aarch64 ] || containers=/usr/lib/aarch64-linux-gnu

# The folder of the stand-in's state: each container has one of its own there.
mkdir -p "$root$libraries" "$root/var/run/cdi" "$root/run/nvshare/stand-in"
for library in libcuda.so.1 libnvidia-ml.so.1; do
  # Containers that run keep the file that they have.
  cp -L "$stand_in/$library" "$root$libraries/$library.new"
  mv "$root$libraries/$library.new" "$root$libraries/$library"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
NVSHARE_CDI_DIR=$work NVSHARE_INSTALL_DIR=$work "$plugin" --write-cdi
gpus=$(grep -oh 'GPU-[0-9a-f-]*' "$work"/*.json | sort -u)
[ -n "$gpus" ] || { echo "install-driver.sh: the stand-in has no GPU" >&2; exit 1; }

{
  echo '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": ['
  separator=
  for gpu in $gpus; do
    echo "$separator"'  {"name": "'"$gpu"'", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}'
    separator=,
  done
  cat << END
], "containerEdits": {
  "env": ["SIMGPU_STATE=$SIMGPU_STATE", "SIMGPU_MEMORY_MB=$SIMGPU_MEMORY_MB"],
  "mounts": [
    {"hostPath": "$libraries/libcuda.so.1", "containerPath": "$containers/libcuda.so.1", "options": ["ro", "nosuid", "nodev", "bind"]},
    {"hostPath": "$libraries/libnvidia-ml.so.1", "containerPath": "$containers/libnvidia-ml.so.1", "options": ["ro", "nosuid", "nodev", "bind"]},
    {"hostPath": "tmpfs", "containerPath": "$(dirname "$SIMGPU_STATE")", "type": "tmpfs", "options": ["rw", "nosuid", "nodev", "mode=1777"]}
  ]
}}
END
} > "$root/var/run/cdi/nvidia.com-gpu.json.new"
mv "$root/var/run/cdi/nvidia.com-gpu.json.new" "$root/var/run/cdi/nvidia.com-gpu.json"
echo "the stand-in GPU is installed: $gpus"
