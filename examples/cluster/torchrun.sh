#!/bin/bash
# nlac on the GPUs of one machine: examples/cluster/torchrun.sh RECIPE RUN [GPUS]
# torchrun comes with Python's torch; nlac does not use its Python part. A rank that ends makes torchrun end all and
# start them again, up to 3 times; the same command then continues the run. Without the --, torchrun would read --run
# as one of its own options.
set -euo pipefail
recipe="$1"
run="$2"
exec torchrun --standalone --nproc-per-node "${3:-8}" --max-restarts 3 --no-python -- \
  npx nlac train "$recipe" --run "$run" --set "learner.device=${NLAC_DEVICE:-cuda}" --set learner.sharding=2
