#!/usr/bin/env bash
# What the Dockerfile does, also without a container engine: builds the programs and lays out the image's root file system.
#   deploy/docker/build.sh ROOT [BUILD_DIR]      BUILD_DIR: an existing build to take instead of making one
# ROOT must not exist yet. Ends by running each program with nothing but ROOT's own libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

root=${1:?the folder to make}
build=${2:-}
[ ! -e "$root" ] || { echo "build.sh: $root is there already" >&2; exit 1; }
programs=(nvshare-scheduler nvshare-device-plugin nvshare-dra-driver nvsharectl)
if [ -z "$build" ]; then
  build=build/image
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNVSHARE_BUILD_TESTS=OFF -DNVSHARE_METRICS=ON -DNVSHARE_DEVICE_PLUGIN=ON
  cmake --build "$build" --target nvshare "${programs[@]}"
fi

mkdir -p "$root"/usr/{bin,lib/nvshare} "$root"/{etc,tmp,run,var/lib}
chmod 1777 "$root/tmp"
# Where it looks like Debian, NVIDIA's runtime puts NVML where Debian's loader looks for it.
echo "nvshare" > "$root/etc/debian_version"
echo "root:x:0:0:root:/:/sbin/nologin" > "$root/etc/passwd"
for program in "${programs[@]}"; do
  install -m 755 "$build/bin/$program" "$root/usr/bin/"
  strip --strip-debug "$root/usr/bin/$program"
done
install -m 644 "$build/lib/libnvshare.so" "$root/usr/lib/nvshare/"

# Shared libraries at the paths that the loader knows without a cache. NVML, which comes from the host, also wants libc's small ones.
libraries=/lib/$(gcc -print-multiarch)
{
  for program in "${programs[@]}"; do
    missing=$(ldd "$build/bin/$program" | grep 'not found' || true)
    [ -z "$missing" ] || { echo "build.sh: $program needs $missing" >&2; exit 1; }
    ldd "$build/bin/$program" | grep -oE '/[^ ]+\.so[^ ]*'
  done
  for name in libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libc.so.6; do echo "$libraries/$name"; done
} | sort -u > "$root.libraries"
loader=""
while IFS= read -r library; do
  case "$library" in
    */ld-linux*) loader=$library; install -D -m 755 "$library" "$root$library" ;;
    *) install -D -m 644 "$library" "$root$libraries/$(basename "$library")" ;;
  esac
done < "$root.libraries"
rm -f "$root.libraries"

for program in "${programs[@]}"; do
  # The image's own loader, which looks nowhere but in the image.
  run=("$root$loader" --inhibit-cache --library-path "$root$libraries" "$root/usr/bin/$program")
  outside=$("$root$loader" --inhibit-cache --library-path "$root$libraries" --list "$root/usr/bin/$program" | grep '=> /' | grep -vF "=> $root/" || true)
  [ -z "$outside" ] || { echo "build.sh: $program takes from outside the image: $outside" >&2; exit 1; }
  echo "$program $("${run[@]}" --version | tail -n 1)"
done
echo "made $root ($(du -sh "$root" | cut -f1))"
