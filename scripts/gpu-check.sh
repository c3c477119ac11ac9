#!/bin/bash
# Runs everything that needs a GPU, on a CUDA machine whose python3 has torch 2.11: builds the CUDA addon, runs the
# tests on it, the benchmarks, and compute-sanitizer over the kernels' tests. Prints a table of the results at the end.
#   scripts/gpu-check.sh                 all steps
#   scripts/gpu-check.sh build tests     some steps, of: build tests training losses generation ema adamw
#                                        sampler sanitizer
# Without Node, the addon, the TypeScript tests and the benchmarks are skipped. A run that is interrupted leaves its log
# and the table of the finished steps.
# Environment:
#   NODE             the node to use if PATH has none
#   PYTHON           the Python with torch and the peers that `scripts/peers.sh cuda` installs; default python3. A row
#                    says so if its peer is missing.
#   NLAC_OFFLINE=1   download nothing: node_modules, libtorch and nvcc must be present (scripts/gpu-bundle.mjs packs
#                    node_modules and a build)
#   NLAC_LIBTORCH    the torch directory whose libraries programs that were built elsewhere load
#   NLAC_GPU_OUT     directory of the log, the table and the benchmarks' reports; default build/gpu-check
#   NLAC_BENCH       options of the benchmarks; default --trials 1
#   NLAC_STEP_LIMIT  timeout of a step in seconds; default 540
set -uo pipefail
cd "$(dirname "$0")/.."
out="${NLAC_GPU_OUT:-build/gpu-check}"
mkdir -p "$out" && out="$(cd "$out" && pwd)"
log="$out/gpu-check.log" table="$out/gpu-check.txt"
node="${NODE:-node}"
if [ -n "${NLAC_LIBTORCH:-}" ]; then
  libraries="$NLAC_LIBTORCH/lib:$NLAC_LIBTORCH/../nvidia/cu13/lib"
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
# Programs that start with "#!/usr/bin/env node" use the same node.
case "$node" in */*) PATH="$(cd "$(dirname "$node")" && pwd):$PATH" ;; esac
python="${PYTHON:-python3}"
limit="${NLAC_STEP_LIMIT:-540}"
export NLAC_TEST_DEVICE=cuda
export NLAC_TEST_FIXTURES="$PWD/test/fixtures"
# --no-skip: without a GPU, cases of torch programs fail instead of being left out.
gpu_cases=('--test-case=*cuda*,*gpu*' --no-skip)

has_node() { command -v "$node" >/dev/null; }

# Runs a program within the remaining time of the step.
within() { timeout --kill-after=10 $((limit - SECONDS > 0 ? limit - SECONDS : 1)) "$@"; }

nlac() { within "$node" --import jiti/register lib/cli/main.ts "$@"; }

# The test programs with GPU cases, and those that do not start: running them fails.
programs() {
  local program count
  for program in build/cuda/native/test/test_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    count="$("$program" --count "${gpu_cases[@]}" 2>&1)" || count='filters: 1'
    grep 'filters: [1-9]' <<<"$count" >/dev/null && echo "$program"
  done
}

build() {
  if ! has_node; then
    local torch
    torch="$("$python" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')" &&
      cmake -S . -B build/cuda -G Ninja -DNLAC_CUDA=ON -DNLAC_TESTS=ON -DNLAC_ADDON=OFF "-DNLAC_LIBTORCH=$torch" &&
      within cmake --build build/cuda
    return
  fi
  if [ "${NLAC_OFFLINE:-}" != 1 ]; then
    [ -d node_modules ] || npm ci || return
    nlac setup --cuda --no-build || return
  fi
  within "$node" scripts/build-native.mjs --cuda --tests
}

# The C++ tests' cases of a GPU, and the TypeScript tests that take a device.
tests() {
  local status=0 program tested=() files
  mapfile -t tested < <(programs)
  if [ ${#tested[@]} = 0 ]; then
    echo "no test program with cases of a GPU has been built"
    return 1
  fi
  for program in "${tested[@]}"; do
    echo "-- $program"
    within "$program" "${gpu_cases[@]}" || status=1
  done
  if has_node; then
    mapfile -t files < <(grep -rlE "testDevice|tinyLearner|NLAC_TEST_DEVICE" test/{algorithms,learner,ops} --include="*.test.ts"
      ls test/ranks/one-rank.test.ts)
    within "$node" node_modules/vitest/vitest.mjs run "${files[@]}" || status=1
  fi
  return $status
}

sanitizer() {
  local status=0 program tool
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not there"
    return 77
  fi
  for tool in memcheck racecheck; do
    for program in $(programs); do
      echo "-- $tool $program"
      # torch asks for things that fail and handles it: only the kernels' own faults count.
      within compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 1 "$program" "${gpu_cases[@]}" ||
        status=1
    done
  done
  return $status
}

bench() { # shellcheck disable=SC2086 # several options
  if ! has_node; then
    echo "no Node: name one in NODE"
    return 77
  fi
  nlac bench "$1" --device cuda --peers --python "$python" --out "$out" ${NLAC_BENCH:---trials 1}
}

failed=0
step() { # name, function
  local verdict
  SECONDS=0
  echo "== $1" | tee -a "$log"
  "$2" "$1" 2>&1 | tee -a "$log"
  case "${PIPESTATUS[0]}" in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    *) verdict=FAILED failed=1 ;;
  esac
  printf '%-10s %-8s %4d s   %s\n' "$1" "$verdict" "$SECONDS" "$(tail -n 1 "$log" | cut -c1-70)" >>"$table"
}

[ $# -gt 0 ] || set -- build tests training losses generation ema adamw sampler sanitizer
: >"$log"
: >"$table"
if ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$log"; then
  echo "No GPU answers: nvidia-smi failed." >&2
  exit 1
fi
for name in "$@"; do
  case "$name" in
    build | tests | sanitizer) step "$name" "$name" ;;
    training | losses | generation | ema | adamw | sampler) step "$name" bench ;;
    *) echo "There is no step $name." >&2; exit 1 ;;
  esac
done
echo
cat "$table"
exit $failed
