#!/usr/bin/env bash
# Writes chunk_hash_ptx.h from chunk_hash.cu. Needs clang with its NVPTX target, and nothing of the CUDA toolkit; run it after changing the
# kernel and check the result in. An old PTX (CUDA 9) for an old architecture: any driver that has what swapping needs takes it.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CLANG:-clang-14}" -x cuda --cuda-device-only --cuda-gpu-arch=sm_52 -Xclang -target-feature -Xclang +ptx60 -nocudainc -nocudalib \
  -Wno-unknown-cuda-version -std=c++17 -O3 -S -o "$work/chunk_hash.ptx" chunk_hash.cu
sed -i -e '/^\/\//d' -e '/^$/d' -e '/^\t\/\//d' "$work/chunk_hash.ptx"
if [ -n "${PTXAS:-}" ]; then "$PTXAS" -arch=sm_90 -o /dev/null "$work/chunk_hash.ptx"; fi
{
  echo "// Made from chunk_hash.cu by make_chunk_hash_ptx.sh. Do not edit."
  echo "#pragma once"
  echo
  echo "namespace nvshare::interposer {"
  echo
  echo "// clang-format off"
  echo "inline constexpr char kChunkHashPtx[] = R\"ptx("
  cat "$work/chunk_hash.ptx"
  echo ")ptx\";"
  echo "// clang-format on"
  echo
  echo "}  // namespace nvshare::interposer"
} > chunk_hash_ptx.h
