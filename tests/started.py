"""One function for every launcher: train a tiny model for five steps with whoever else was started, and write down what
came out. `python tests/started.py FILE` under torchrun or SLURM's variables; `--ray` starts two workers by Ray Train.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch

from together import plan, trained, weights
from vitrail.train.distributed.collectives import join_group


def work(settings: dict[str, str]) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    asked = plan("ddp", steps=5)
    with join_group("cpu", 60) as team:
        learner, losses = trained(asked, team)
        digest = hashlib.sha256()
        for tensor in weights(learner, asked, team):
            digest.update(tensor.numpy().tobytes())
        found = {"weights": digest.hexdigest(), "losses": losses}
        assert team.all_gather_object(found) == [found] * 2
    if team.is_rank0:
        Path(settings["file"]).write_text(json.dumps({**found, "origin": team.info.launcher, "world": team.world_size}))


def by_ray(file: str) -> None:
    """A local cluster of two workers."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    storage = RunConfig(storage_path=str(Path(file).parent / "ray"))
    TorchTrainer(work, train_loop_config={"file": file}, scaling_config=scaling, run_config=storage).fit()
    ray.shutdown()


if __name__ == "__main__":
    if "--ray" in sys.argv:
        by_ray(sys.argv[1])
    else:
        work({"file": sys.argv[1]})
