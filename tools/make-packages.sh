#!/usr/bin/env bash
# Debian packages of this distribution from a build of the preset `release`: nvshare, and nvshare-kubernetes and nvshare-slurm where those were built.
#   tools/make-packages.sh BUILD_DIR DIST_DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:?build directory}
dist=${2:?destination}
[ -f "$build/CPackConfig.cmake" ] || { echo "make-packages: $build is no configured build of the preset release" >&2; exit 1; }
command -v dpkg-shlibdeps > /dev/null || { echo "make-packages: dpkg-shlibdeps is missing (Debian: dpkg-dev)" >&2; exit 1; }
mkdir -p "$dist"
rm -f "$dist"/nvshare*.deb
cpack -G DEB --config "$build/CPackConfig.cmake" -B "$dist" > "$dist/cpack.log" 2>&1 || { cat "$dist/cpack.log" >&2; exit 1; }
rm -rf "$dist/_CPack_Packages" "$dist/cpack.log"
ls "$dist"/nvshare*.deb
