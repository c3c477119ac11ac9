#!/bin/bash
# Everything that needs a GPU, on a CUDA machine whose python3 has torch 2.11: builds the CUDA addon, runs the tests on
# it, compute-sanitizer over the kernels' tests and the benchmarks, and closes with a table of what passed.
#   scripts/gpu-check.sh                 all of it
#   scripts/gpu-check.sh build tests     some steps, of: build tests sanitizer losses sampler ema adamw
#                                        generation
# Environment:
#   NODE             the node to use, where PATH has none
#   PYTHON           the Python with torch and the peers, what `scripts/peers.sh cuda` makes say; default python3. A peer
#                    it lacks is a row that says so.
#   NLAC_OFFLINE=1   download nothing: node_modules, libtorch and nvcc must be there
#   NLAC_GPU_OUT     where logs and the benchmarks' reports go; default build/gpu-check
#   NLAC_BENCH       options of the benchmarks; default --trials 1
set -uo pipefail
cd "$(dirname "$0")/.."
out="${NLAC_GPU_OUT:-build/gpu-check}"
mkdir -p "$out" && out="$(cd "$out" && pwd)"
node="${NODE:-node}"
# What is started by its "#!/usr/bin/env node" finds the same one.
case "$node" in */*) PATH="$(cd "$(dirname "$node")" && pwd):$PATH" ;; esac
export NLAC_TEST_DEVICE=cuda
results=()
failed=0

step() { # name, function
  local begin=$SECONDS verdict
  echo "== $1"
  "$2" "$1" 2>&1 | tee "$out/$1.log"
  case "${PIPESTATUS[0]}" in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    *) verdict=FAILED failed=1 ;;
  esac
  results+=("$(printf '%-10s %-8s %4d s   %s' "$1" "$verdict" $((SECONDS - begin)) "$(tail -n 1 "$out/$1.log" | cut -c1-70)")")
}

nlac() { "$node" --import jiti/register lib/cli/main.ts "$@"; }

build() {
  if [ "${NLAC_OFFLINE:-}" != 1 ]; then
    [ -d node_modules ] || npm ci || return
    nlac setup --cuda --no-build || return
  fi
  "$node" scripts/build-native.mjs --cuda --tests
}

# The C++ tests, and the TypeScript tests that take a device.
tests() {
  local status=0 files
  ctest --test-dir build/cuda --output-on-failure || status=1
  mapfile -t files < <(grep -rlw NLAC_TEST_DEVICE test --include='*.test.ts')
  if [ ${#files[@]} -gt 0 ]; then
    "$node" node_modules/vitest/vitest.mjs run "${files[@]}" || status=1
  fi
  return $status
}

# The cases that have "cuda" or "GPU" in their name, of every test program that has some.
sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not there"
    return 77
  fi
  local status=0 program tool cases=0 kernels='--test-case=*cuda*,*gpu*'
  export NLAC_TEST_FIXTURES="$PWD/test/fixtures"
  for program in $(find build/cuda -name 'test_*' -type f -perm -u+x); do
    "$program" --count "$kernels" | grep -q 'filters: [1-9]' || continue
    cases=1
    for tool in memcheck racecheck; do
      # torch asks for things that fail and handles it: only the kernels' own faults count.
      compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 1 \
        "$program" "$kernels" || status=1
    done
  done
  if [ $cases = 0 ]; then
    echo "no test case is of a GPU"
    return 77
  fi
  return $status
}

bench() { # shellcheck disable=SC2086 # several options
  nlac bench "$1" --device cuda --peers --python "${PYTHON:-python3}" --out "$out" ${NLAC_BENCH:---trials 1}
}

[ $# -gt 0 ] || set -- build tests sanitizer losses sampler ema adamw generation
if ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; then
  echo "No GPU answers: nvidia-smi failed." >&2
  exit 1
fi
for name in "$@"; do
  case "$name" in
    build | tests | sanitizer) step "$name" "$name" ;;
    losses | sampler | ema | adamw | generation) step "$name" bench ;;
    *) echo "There is no step $name." >&2; exit 1 ;;
  esac
done
echo
printf '%s\n' "${results[@]}"
exit $failed
