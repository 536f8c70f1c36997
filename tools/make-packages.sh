#!/usr/bin/env bash
# Packages from a build: Debian packages of this distribution from one of the preset `release`; from one of the preset `dist`, whose programs
# need libc alone, a Debian package for other releases and for Ubuntu (nvshare-portable_*.deb), and .rpm. nvshare, and nvshare-kubernetes and
# nvshare-slurm where those were built. --deb or --rpm: that kind alone, of any build.
#   tools/make-packages.sh [--deb | --rpm] BUILD_DIR DIST_DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kinds=()
case "${1:-}" in --deb | --rpm) kinds=("${1#--}"); shift ;; esac
build=${1:?build directory}
dist=${2:?destination}
[ -f "$build/CPackConfig.cmake" ] || { echo "make-packages: $build is no configured build of the preset release or dist" >&2; exit 1; }
if [ "${#kinds[@]}" -eq 0 ]; then
  kinds=(deb)
  if grep -q '^NVSHARE_PORTABLE:BOOL=ON$' "$build/CMakeCache.txt"; then kinds+=(rpm); fi
fi
mkdir -p "$dist"
for kind in "${kinds[@]}"; do
  # Of an earlier version only its own are removed: both builds' lie in one folder.
  case "$kind" in
    deb)
      tool=dpkg-shlibdeps package=dpkg-dev
      if grep -q nvshare-portable_ "$build/CPackConfig.cmake"; then
        former=("$dist"/nvshare-portable_*.deb)
      else
        former=("$dist"/nvshare{,-kubernetes,-slurm}_*.deb)
      fi
      ;;
    rpm) tool=rpmbuild package=rpm former=("$dist"/nvshare*.rpm) ;;
  esac
  command -v "$tool" > /dev/null || { echo "make-packages: $tool is missing (Debian: $package)" >&2; exit 1; }
  rm -f "${former[@]}"
  cpack -G "${kind^^}" --config "$build/CPackConfig.cmake" -B "$dist" > "$dist/cpack.log" 2>&1 || { cat "$dist/cpack.log" >&2; exit 1; }
  rm -rf "$dist/_CPack_Packages" "$dist/cpack.log"
done
ls "$dist"/nvshare*
