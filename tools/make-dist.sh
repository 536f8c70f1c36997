#!/usr/bin/env bash
# Packs a build of the preset `dist` or `arm64` into dist/: bin/, lib/, share/doc, the demo's stand-in GPU, the programs for GPU checks, and all of it as
# one relocatable tarball. Checks that the result runs where it should: nothing needed but libc, and no symbol of it newer than GLIBC_MAX.
#   tools/make-dist.sh BUILD_DIR DIST_DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

GLIBC_MAX=2.34          # of the programs; libnvshare.so has a stricter test of its own
build=${1:?build directory}
dist=${2:?destination}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
[ -n "$version" ] || { echo "make-dist: no version in $build/CMakeCache.txt" >&2; exit 1; }
of_cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
strip=$(of_cache CMAKE_STRIP) objdump=$(of_cache CMAKE_OBJDUMP)
case "$strip" in
  *aarch64-linux-gnu-*) machine=aarch64 loader=ld-linux-aarch64.so.1 emulator="qemu-aarch64" ;;
  *) machine=x86_64 loader=ld-linux-x86-64.so.2 emulator= ;;
esac
name=nvshare-$version-linux-$machine

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
root=$tree/$name
mkdir -p "$root"/{bin,lib/nvshare/simgpu,share/doc/nvshare,share/nvshare,test}
install -m 755 "$build"/bin/{nvshare-scheduler,nvsharectl,nvshare-demo-job} "$root/bin/"
install -m 755 deploy/packaging/nvshare "$root/bin/"
install -m 644 "$build/lib/libnvshare.so" "$root/lib/"
install -m 644 "$build"/simgpu/{libcuda.so.1,libnvidia-ml.so.1} "$root/lib/nvshare/simgpu/"
install -m 644 LICENSE "$root/share/doc/nvshare/"
grep -v '^#' deploy/packaging/documents | while IFS= read -r document; do  # cmake/Packaging.cmake reads the same list
  mkdir -p "$root/share/doc/nvshare/$(dirname "$document")"
  cp -r "$document" "$root/share/doc/nvshare/$document"
done
cp -r deploy/systemd deploy/jupyter "$root/share/nvshare/"
# The plugin for the Slurm whose headers were there; for another it is built from these sources (docs/slurm.md).
cp -r deploy/slurm "$root/share/nvshare/"
headers=$(sed -n 's/^NVSHARE_SLURM_INCLUDE:PATH=//p' "$build/CMakeCache.txt")
wanted=$(sed -n 's/^NVSHARE_SLURM_PLUGIN:STRING=//p' "$build/CMakeCache.txt")
if [ "$wanted" = OFF ]; then
  echo "make-dist: no plugin for Slurm is in it: NVSHARE_SLURM_PLUGIN is OFF in $build" >&2
elif [ ! -f "$headers/slurm/spank.h" ]; then
  echo "make-dist: no plugin for Slurm is in it: there was no slurm/spank.h (Debian: libslurm-dev)" >&2
else
  for file in nvshare_spank.so nvshare-slurm-step; do
    [ -f "$build/slurm/$file" ] || { echo "make-dist: $build/slurm/$file is not built: cmake --build $build --target slurm_plugin" >&2; exit 1; }
  done
  mkdir -p "$root/lib/nvshare/slurm"
  install -m 644 "$build/slurm/nvshare_spank.so" "$root/lib/nvshare/slurm/"
  install -m 755 "$build/slurm/nvshare-slurm-step" "$root/lib/nvshare/slurm/"
  "$strip" --strip-debug "$root/lib/nvshare/slurm/nvshare_spank.so" "$root/lib/nvshare/slurm/nvshare-slurm-step"
  number=$(sed -n 's/^#define SLURM_VERSION_NUMBER 0x\([0-9a-f]\{6\}\)$/\1/p' "$headers/slurm/slurm_version.h")
  [ -n "$number" ] || { echo "make-dist: $headers/slurm/slurm_version.h has no SLURM_VERSION_NUMBER" >&2; exit 1; }
  printf 'nvshare_spank.so here is for Slurm %d.%02d.%d. For another release of Slurm it is built from the source tree of nvshare %s:\nshare/doc/nvshare/docs/slurm.md, "Another Slurm".\n' \
    "0x${number:0:2}" "0x${number:2:2}" "0x${number:4:2}" "$version" > "$root/lib/nvshare/slurm/README"
fi
mkdir "$tree/emulated"
for program in nvsharectl nvshare-scheduler nvshare-demo-job; do
  printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$emulator" "$(realpath "$build")/bin/$program" > "$tree/emulated/$program"
  chmod +x "$tree/emulated/$program"
done
tools/command-pages.py "$root" "$tree"/emulated/*
install -m 755 deploy/packaging/install.sh "$root/"
for program in "$build"/gpu/*; do
  if [ -f "$program" ] && [ -x "$program" ]; then install -m 755 "$program" "$root/test/"; fi
done
# The stand-in stays with its debug information: it is small. The rest does without.
"$strip" --strip-debug "$root"/bin/nvshare{ctl,-scheduler,-demo-job} "$root"/lib/libnvshare.so

# Only libc's own libraries, and no newer symbols than promised.
problems=0
while IFS= read -r file; do
  [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue  # a script
  needed=$("$objdump" -p "$file" 2> /dev/null | awk '$1 == "NEEDED" {print $2}' | grep -vE "^(libc|libm|libdl|libpthread|librt)\.so\.[0-9]+\$|^$loader\$" || true)
  case "$file" in
    */simgpu/*) ;;  # for the demo on the machine's own libraries
    *)
      if [ -n "$needed" ]; then
        echo "make-dist: ${file#"$root"/} needs $(echo "$needed" | tr '\n' ' ')" >&2
        problems=$((problems + 1))
      fi
      ;;
  esac
  newest=$("$objdump" -T "$file" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  if [ -n "$newest" ] && [ "$(printf '%s\n%s\n' "$newest" "$GLIBC_MAX" | sort -V | tail -n 1)" != "$GLIBC_MAX" ]; then
    echo "make-dist: ${file#"$root"/} needs GLIBC_$newest, newer than $GLIBC_MAX: $("$objdump" -T "$file" | grep -F "GLIBC_$newest" | awk '{print $NF}' | tr '\n' ' ')" >&2
    problems=$((problems + 1))
  fi
done < <(find "$root/bin" "$root/lib" "$root/test" -type f)
[ "$problems" -eq 0 ] || exit 1

rm -rf "$dist"
mkdir -p "$dist"
tar -C "$tree" --owner=0 --group=0 --sort=name -czf "$dist/$name.tar.gz" "$name"
cp -r "$root"/. "$dist/"
echo "made $dist/$name.tar.gz ($(du -h "$dist/$name.tar.gz" | cut -f1)); unpacked in $dist/"
