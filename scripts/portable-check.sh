#!/bin/bash
# Parses every C++ source of native/ with clang against libc++ and with the portable forms of native/core/platform.h, as a
# Mac's compiler would, and prints what fails. Nothing is linked or run, and the system's own headers are still Linux's.
# Needs clang and libc++ (Debian: clang-19 libc++-19-dev libc++abi-19-dev libomp-19-dev), `npm ci`, and libtorch
# (NLAC_LIBTORCH, or the cache of `nlac setup`). torch's headers are parsed once, as a build does.
#   scripts/portable-check.sh [FILE…]     default: all sources except fuzzers, CUDA and emulation
#   JOBS=1 CLANG=clang++-19 scripts/portable-check.sh
#   MAC_TYPES=1 scripts/portable-check.sh   with int64_t as `long long`, as on macOS; there, `long` is another type
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
  mapfile -t files < <(find native -name '*.cc' -not -path 'native/test/cuda/*' -not -path 'native/fuzz/*' \
    -not -path 'native/loader/older_systems.cc' | sort)
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
flags=(-std=c++20 -stdlib=libc++ -fopenmp -fPIC -ferror-limit=5 -w -DNLAC_PORTABLE)
if [ "${MAC_TYPES:-0}" = 1 ]; then
  # glibc names its 64-bit types in these two headers only.
  mkdir -p "$results/types/bits"
  for sign in int uint; do
    {
      echo '#pragma once'
      for bits in 8 16 32; do echo "typedef __$sign${bits}_t $sign${bits}_t;"; done
      echo "typedef $([ $sign = int ] && echo signed || echo unsigned) long long ${sign}64_t;"
    } > "$results/types/bits/stdint-${sign}n.h"
  done
  # torch's conditions on the system that concern these types.
  mkdir -p "$results/types/c10/core"
  for header in Scalar SymInt; do
    sed 's/__linux__/NLAC_NEVER/; s/__APPLE__/__linux__/' "$torch/include/c10/core/$header.h" > "$results/types/c10/core/$header.h"
  done
  flags+=(-isystem "$results/types")
fi
flags+=(-I native -isystem third_party
  -isystem third_party/xgrammar/include -isystem third_party/xgrammar/3rdparty -isystem native/core/ranks/include
  -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
  -isystem node_modules/node-api-headers/include -isystem node_modules/node-addon-api
  -DNAPI_VERSION=9 -DNODE_ADDON_API_CPP_EXCEPTIONS -DNODE_ADDON_API_DISABLE_DEPRECATED
  -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS)
printf '#include <%s>\n' ATen/ATen.h ATen/Parallel.h ATen/core/grad_mode.h > "$results/torch.h"
if ! "$clang" -x c++-header "${flags[@]}" "$results/torch.h" -o "$results/torch.pch" 2> "$results/torch.txt"; then
  echo "torch's own headers do not compile; the sources are parsed without them first:"
  grep -E "error:" "$results/torch.txt"
  rm -f "$results/torch.pch"
fi
check() {
  local log="$results/${1//\//_}.log" source=$1 header=()
  shift
  case $source in
    native/core/io/* | native/core/replay/* | native/core/model/families/* | native/loader/* | native/test/core/io/*) ;;
    *) [ ! -e "$results/torch.pch" ] || header=(-include-pch "$results/torch.pch") ;;
  esac
  "$clang" -fsyntax-only "${header[@]}" "$@" "$source" > "$log" 2>&1 && rm "$log"
}
export -f check
export clang results
printf '%s\0' "${files[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'check "$@"' _ {} "${flags[@]}"
failed=0
for log in "$results"/*.log; do
  [ -e "$log" ] || continue
  failed=$((failed + 1))
  grep -E "error:" "$log" || cat "$log"
done
echo "$("$clang" --version | head -1): ${#files[@]} sources, $failed failed"
[ "$failed" -eq 0 ]
