#!/usr/bin/env bash
# Installs what building and testing nvshare needs, from the distribution's own packages (Debian 12, Ubuntu 24.04 and their kin).
#   tools/install-dependencies.sh [demo] [docs] [build] [test] [lint] [package] [machine] [arm64]      build, test and lint when none is named
# Says what is missing before it installs it; takes a few hundredths of a second when nothing is. Uses sudo unless run as root.
set -euo pipefail

# What ./dev demo compiles: library, scheduler, nvsharectl, the stand-in GPU.
demo_packages=(cmake g++ libasio-dev libcli11-dev libfmt-dev libspdlog-dev libtomlplusplus-dev libyaml-dev ninja-build nlohmann-json3-dev)
build_packages=(
  "${demo_packages[@]}" binutils ccache dpkg-dev file python3 libbenchmark-dev libgtest-dev librapidcheck-dev
  prometheus-cpp-dev  # only the scheduler's metrics
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc  # only nvshare-device-plugin and nvshare-dra-driver; all else builds without
  libcurl4-openssl-dev libssl-dev                                         # the same
  libslurm-dev  # only the plugin for Slurm; all else builds without
)
# The site of the documents (tools/site).
docs_packages=(git mkdocs mkdocs-material python3 python3-markdown-it)
# The tests' own: a real Prometheus takes in the scheduler's metrics; Kubernetes manifests are checked; a real Slurm runs jobs, one
# of them in a container of bubblewrap; a Jupyter kernel loads the extension; packages are made; zsh and fish complete command
# lines; a headless Chromium opens the scheduler's page (100 MB, seconds; the test is skipped without).
services=(prometheus munge slurmctld slurmd)
test_packages=("${services[@]}" bubblewrap fish python3-ipykernel python3-jsonschema python3-jupyter-client python3-yaml rpm slurm-client zsh)
# A minimal Debian in a folder, on which the package is installed (test/deploy/fresh_machine_test.py; skipped without).
machine_packages=(debootstrap)
if grep -qs '^ID=debian$' /etc/os-release; then
  test_packages+=("${machine_packages[@]}")
  test_packages+=(chromium-headless-shell)  # Ubuntu has it as a snap alone
  test_packages+=("${docs_packages[@]}")    # the site of the documents is tested with the mkdocs of Debian 12
fi
# .rpm packages.
package_packages=(rpm)
# Cross-building for 64-bit ARM (preset `arm64`), and running what came of it.
# Its libc is the distribution's own for that machine, loader included: the cross compiler's loader with another libc hangs at the first thread.
arm64_packages=(g++-aarch64-linux-gnu libc6:arm64 libstdc++6:arm64 libyaml-dev:arm64 qemu-user)
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
[ $# -gt 0 ] || set -- build test lint
for group in "$@"; do
  case "$group" in
    demo) wanted+=("${demo_packages[@]}") ;;
    docs) wanted+=("${docs_packages[@]}") ;;
    build) wanted+=("${build_packages[@]}") ;;
    test) wanted+=("${test_packages[@]}") ;;
    machine) wanted+=("${machine_packages[@]}") ;;
    package) wanted+=("${package_packages[@]}") ;;
    arm64) wanted+=("${arm64_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}" "$(clang_runtime_package)") ;;
    *) echo "install-dependencies: unknown group '$group'; there are 'demo', 'docs', 'build', 'test', 'lint', 'package', 'machine' and 'arm64'" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "install-dependencies: this is no Debian or Ubuntu; please install by hand what these packages hold: ${wanted[*]}" >&2
  exit 0
fi

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n${db:Status-Status} ${Package}:${Architecture}\n' | sed -n 's/^installed //p')
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
case " ${missing[*]}" in *:arm64*) "${as_root[@]}" dpkg --add-architecture arm64 ;; esac
"${as_root[@]}" apt-get update -qq < /dev/null

# Packages start their services: these shall neither start now nor at the next boot. (policy-rc.d, exit 101: nothing may start.)
policy=/usr/sbin/policy-rc.d
keep_services_down() {
  [ -e "$policy" ] || printf '#!/bin/sh\n# nvshare, while it installs packages\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
  "${as_root[@]}" chmod +x "$policy"
}
let_services_be() {
  if grep -qF '# nvshare, while' "$policy" 2> /dev/null; then "${as_root[@]}" rm -f "$policy"; fi
  command -v deb-systemd-helper > /dev/null || return 0
  local service
  for service in "${new_services[@]}"; do "${as_root[@]}" deb-systemd-helper disable "$service.service" > /dev/null 2>&1 || true; done
}
new_services=()
for service in "${services[@]}"; do
  if [[ " ${missing[*]} " == *" $service "* ]]; then new_services+=("$service"); fi
done
if [ ${#new_services[@]} -gt 0 ]; then
  trap let_services_be EXIT
  keep_services_down
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" < /dev/null
echo "nvshare: installed ${#missing[@]} packages"
