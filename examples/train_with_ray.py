"""Several workers of a Ray cluster train one model: Ray Train brings them together, `vitrail.fit` does the rest.

    pip install 'vitrail[ray]' 'ray[train]'
    python examples/train_with_ray.py /data/cells.csv --workers 2 --epochs 100 --out /data/runs/cells

The cluster is the one that RAY_ADDRESS names, or one that is started on this machine. Pictures, table and run folder
must be visible to all workers under the same names. The batch is that of all workers together: any number of them
trains on the same pictures in the same order.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(arguments: dict[str, Any]) -> None:
    """What each worker does: the first one shows, measures and writes."""
    import vitrail

    vitrail.fit(**arguments)


def main() -> None:
    """Train with so many workers, each on a GPU of its own if that is wished."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("source", help="a folder, a table or a name that vitrail.fit knows")
    words.add_argument("--out", type=Path, required=True, help="the run folder, where all workers see it")
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--gpu", action="store_true", help="a GPU for each worker; without it a core")
    words.add_argument("--model")
    amount = words.add_mutually_exclusive_group(required=True)
    amount.add_argument("--epochs", type=float)
    amount.add_argument("--steps", type=int)
    options = words.parse_args()
    wishes = {
        "model": options.model,
        "epochs": options.epochs,
        "steps": options.steps,
        "device": "cuda" if options.gpu else "cpu",
    }
    source = str(Path(options.source).absolute()) if Path(options.source).exists() else options.source
    ray.init(address=os.environ.get("RAY_ADDRESS"))
    scaling = ScalingConfig(num_workers=options.workers, use_gpu=options.gpu)
    storage = RunConfig(storage_path=str(options.out.absolute().with_name(f"{options.out.name}.ray")))
    given = {"source": source, "out": str(options.out.absolute()), **wishes}
    TorchTrainer(work, train_loop_config=given, scaling_config=scaling, run_config=storage).fit()
    print(f"trained: {options.out / 'report.html'}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
