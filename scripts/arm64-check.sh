#!/bin/bash
# Cross-compiles the C++ tests of the CPU's kernels, losses, optimizer, sum tree, model, generation and learner for 64-bit
# ARM (NEON), and runs them with qemu against the fixtures that x86 is tested with. For Debian; slow.
#   scripts/arm64-check.sh [TEST…]   default: all of them, e.g. "cpu replay"
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- cpu replay optim model generate learner loss
tests=("$@")
site="${XDG_CACHE_HOME:-$HOME/.cache}/nlac/libtorch/2.11.0-aarch64"
for program in aarch64-linux-gnu-g++-12 qemu-aarch64-static cmake ninja; do
  command -v "$program" > /dev/null && continue
  apt-get update && apt-get install -y --no-install-recommends g++-12-aarch64-linux-gnu qemu-user-static cmake ninja-build
  break
done
if [ ! -e "$site/torch/lib/libtorch_cpu.so" ]; then
  wheels=$(mktemp -d)
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux2014_aarch64 \
    torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  mkdir -p "$site"
  for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
  rm -r "$wheels"
fi
cmake -S . -B build/arm64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake \
  -DNLAC_LIBTORCH="$site" -DNLAC_TESTS=ON -DNLAC_ADDON=OFF > /dev/null
ninja -C build/arm64 "${tests[@]/#/test_}"
export NLAC_TEST_FIXTURES="$PWD/test/fixtures" OMP_NUM_THREADS=2
status=0
for name in "${tests[@]}"; do
  echo "== test_$name"
  qemu-aarch64-static -L /usr/aarch64-linux-gnu \
    -E LD_LIBRARY_PATH="$site/torch/lib:$site/nvidia/cu13/lib" "build/arm64/native/test/test_$name" || status=1
done
exit $status
