#!/usr/bin/env bash
# Writes kernels_ptx.h from kernels.cu. Needs nvcc; run it after changing the kernels and check the result in.
set -euo pipefail
cd "$(dirname "$0")"
nvcc=${NVCC:-/usr/local/cuda/bin/nvcc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$nvcc" -ptx -arch=compute_75 -o "$work/kernels.ptx" kernels.cu
# The code is plain enough for an old PTX: any driver since CUDA 10.0 takes it.
sed -i -e 's/^\.version .*/.version 6.3/' -e 's/^\.target .*/.target sm_60/' -e '/^\/\//d' -e '/^$/d' "$work/kernels.ptx"
"${nvcc%nvcc}ptxas" -arch=sm_90 -o /dev/null "$work/kernels.ptx"
{
  echo "// Made from kernels.cu by make_kernels_ptx.sh. Do not edit."
  echo "#pragma once"
  echo
  echo "namespace gputest {"
  echo
  echo "// clang-format off"
  echo "inline constexpr char kKernelsPtx[] = R\"ptx("
  cat "$work/kernels.ptx"
  echo ")ptx\";"
  echo "// clang-format on"
  echo
  echo "}  // namespace gputest"
} > kernels_ptx.h
