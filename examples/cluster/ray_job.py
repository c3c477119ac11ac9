"""nlac on a Ray cluster: ray job submit --working-dir . -- python examples/cluster/ray_job.py RECIPE RUN RANKS

One task per GPU runs one rank. RUN is on storage that all machines share. A failed task ends the job; submit it again
to continue the run.
"""

import os
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def meeting_place() -> tuple[str, int]:
    """The address of the machine of rank 0, and a port that is free there."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]


@ray.remote(max_retries=0)
def rank(number: int, ranks: int, address: str, port: int, recipe: str, run: str) -> int:
    # Ray shows each task its own GPU, as device 0.
    place = {"RANK": number, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_ADDR": address, "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    changes = ["--set", "learner.device=cuda", "--set", "learner.sharding=2"]
    command = ["npx", "nlac", "train", recipe, "--run", run, *changes]
    return subprocess.run(command, env=environment, check=True).returncode


def main() -> None:
    recipe, run, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ray.init()
    group = placement_group([{"GPU": 1, "CPU": 4}] * ranks, strategy="PACK")
    ray.get(group.ready())

    def place(bundle: int, **resources: int) -> dict:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        return {"scheduling_strategy": strategy, **resources}

    address, port = ray.get(meeting_place.options(**place(0, num_cpus=1)).remote())
    tasks = [
        rank.options(**place(number, num_cpus=4, num_gpus=1)).remote(number, ranks, address, port, recipe, run)
        for number in range(ranks)
    ]
    ray.get(tasks)


if __name__ == "__main__":
    main()
