#!/bin/bash
# nlac on 2 machines with 8 GPUs each: sbatch examples/cluster/slurm.sh RECIPE RUN
# The checkout, the cache of models (~/.cache/nlac) and RUN are on storage that all machines share.
#SBATCH --job-name=nlac
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
# SIGTERM 120 s before the time limit: nlac saves at the next safe point.
#SBATCH --signal=TERM@120
set -euo pipefail
recipe="$1"
run="$2"
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))"
# Each task derives its rank from Slurm's variables. A requeued job repeats this command, which continues the run.
srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  export LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
  exec npx nlac train "$0" --run "$1" --set learner.device=cuda --set learner.sharding=2
' "$recipe" "$run"
