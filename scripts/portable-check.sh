#!/bin/bash
# Parses every C++ source of native/ with clang against libc++, as a Mac's compiler would, and prints what fails. Nothing
# is linked or run, and the system's own headers are still Linux's. Needs clang and libc++ (Debian: clang-19
# libc++-19-dev libc++abi-19-dev libomp-19-dev), `npm ci`, and libtorch (NLAC_LIBTORCH, or the cache of `nlac setup`).
#   scripts/portable-check.sh [FILE…]     default: all sources except tests, fuzzers and CUDA
#   JOBS=1 CLANG=clang++-16 scripts/portable-check.sh
set -uo pipefail
cd "$(dirname "$0")/.."
clang=${CLANG:-$(command -v clang++ clang++-19 clang++-18 clang++-17 clang++-16 | head -1)}
if [ -z "$clang" ] || ! echo '#include <version>' | "$clang" -stdlib=libc++ -fsyntax-only -x c++ - 2> /dev/null; then
  echo "portable-check: needs clang with libc++" >&2
  exit 2
fi
torch=${NLAC_LIBTORCH:-${XDG_CACHE_HOME:-$HOME/.cache}/nlac/libtorch/2.11.0/torch}
if [ ! -d "$torch/include/ATen" ]; then
  echo "portable-check: $torch has no headers; run \`npx nlac setup\`" >&2
  exit 2
fi
if [ $# -gt 0 ]; then files=("$@"); else
  mapfile -t files < <(find native -name '*.cc' -not -path 'native/test/*' -not -path 'native/fuzz/*' \
    -not -path 'native/loader/older_systems.cc' | sort)
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export clang torch results
check() {
  local log="$results/${1//\//_}.log"
  "$clang" -fsyntax-only -std=c++20 -stdlib=libc++ -fopenmp -ferror-limit=5 -w -I native -isystem third_party \
    -isystem third_party/xgrammar/include -isystem third_party/xgrammar/3rdparty \
    -isystem native/core/ranks/include -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
    -isystem node_modules/node-api-headers/include -isystem node_modules/node-addon-api \
    -DNAPI_VERSION=9 -DNODE_ADDON_API_CPP_EXCEPTIONS -DNODE_ADDON_API_DISABLE_DEPRECATED \
    -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS "$1" > "$log" 2>&1 && rm "$log"
}
export -f check
printf '%s\0' "${files[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'check "$1"' _ {}
failed=0
for log in "$results"/*.log; do
  [ -e "$log" ] || continue
  failed=$((failed + 1))
  grep -E "error:" "$log" || cat "$log"
done
echo "$("$clang" --version | head -1): ${#files[@]} sources, $failed failed"
[ "$failed" -eq 0 ]
