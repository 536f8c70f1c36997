#!/usr/bin/env bash
# Installs what building and testing nvshare needs, from the distribution's own packages (Debian 12, Ubuntu 24.04 and their kin).
#   tools/install-dependencies.sh [build] [lint]      both when none is named
# Says what is missing before it installs it; takes a few hundredths of a second when nothing is. Uses sudo unless run as root.
set -euo pipefail

build_packages=(
  binutils ccache cmake g++ ninja-build python3
  libasio-dev libbenchmark-dev libcli11-dev libfmt-dev libgtest-dev librapidcheck-dev libspdlog-dev libtomlplusplus-dev nlohmann-json3-dev
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc  # only nvshare-device-plugin; all else builds without
  libcurl4-openssl-dev libssl-dev                                         # the same
)
lint_packages=(clang clang-format clang-tidy git)

# clang's runtime (libFuzzer, sanitizers) carries clang's version in its name.
clang_runtime_package() {
  local ID="" VERSION_ID=""
  # shellcheck source=/dev/null
  [ -r /etc/os-release ] && . /etc/os-release
  case "$ID-$VERSION_ID" in
    debian-12) echo libclang-rt-14-dev ;;
    ubuntu-24.04) echo libclang-rt-18-dev ;;
    *) echo libclang-rt-dev ;;
  esac
}

wanted=()
[ $# -gt 0 ] || set -- build lint
for group in "$@"; do
  case "$group" in
    build) wanted+=("${build_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}" "$(clang_runtime_package)") ;;
    *) echo "install-dependencies: unknown group '$group'; there are 'build' and 'lint'" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "install-dependencies: this is no Debian or Ubuntu; please install by hand what these packages hold: ${wanted[*]}" >&2
  exit 0
fi

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p')
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "install-dependencies: missing ${missing[*]}; there is no sudo, so please install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "nvshare: will install these packages with apt-get: ${missing[*]}"
"${as_root[@]}" apt-get update -qq < /dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" < /dev/null
echo "nvshare: installed ${#missing[@]} packages"
