#!/bin/bash
# Makes the virtual environment of Python peers that some tests, the fixtures and the benchmarks compare with:
#   scripts/peers.sh              everything
#   scripts/peers.sh tensorboard  some packages only
# It lies in $XDG_CACHE_HOME/nlac/peers and is never part of the product.
set -euo pipefail
directory="${XDG_CACHE_HOME:-$HOME/.cache}/nlac/peers"
if [ $# -eq 0 ]; then
  set -- torch==2.11.0 "transformers>=5,<6" accelerate gguf safetensors tokenizers tensorboard numpy
fi
[ -x "$directory/bin/python" ] || python3 -m venv "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$directory/bin/python"
