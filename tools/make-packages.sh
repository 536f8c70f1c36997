#!/usr/bin/env bash
# Packages from a build: Debian packages of this distribution from one of the preset `release`, .rpm for other distributions from one of the
# preset `dist` (of any other where --rpm asks for it). nvshare, and nvshare-kubernetes and nvshare-slurm where those were built.
#   tools/make-packages.sh [--deb | --rpm] BUILD_DIR DIST_DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=
case "${1:-}" in --deb | --rpm) kind=${1#--}; shift ;; esac
build=${1:?build directory}
dist=${2:?destination}
[ -f "$build/CPackConfig.cmake" ] || { echo "make-packages: $build is no configured build of the preset release or dist" >&2; exit 1; }
if [ -z "$kind" ]; then
  if grep -q '^NVSHARE_PORTABLE:BOOL=ON$' "$build/CMakeCache.txt"; then kind=rpm; else kind=deb; fi
fi
case "$kind" in
  deb) tool=dpkg-shlibdeps package=dpkg-dev ;;
  rpm) tool=rpmbuild package=rpm ;;
esac
command -v "$tool" > /dev/null || { echo "make-packages: $tool is missing (Debian: $package)" >&2; exit 1; }
mkdir -p "$dist"
rm -f "$dist"/nvshare*."$kind"
cpack -G "${kind^^}" --config "$build/CPackConfig.cmake" -B "$dist" > "$dist/cpack.log" 2>&1 || { cat "$dist/cpack.log" >&2; exit 1; }
rm -rf "$dist/_CPack_Packages" "$dist/cpack.log"
ls "$dist"/nvshare*."$kind"
