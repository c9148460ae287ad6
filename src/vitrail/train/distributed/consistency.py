"""Check that all ranks agree before the first step: data, code, plan, and a batch size they divide."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ... import config
from ...data.source import Source
from ...errors import UsageError
from ..plan import Plan
from .collectives import RankGroup


def check_same_inputs(group: RankGroup, source: Source, splits: Mapping[str, NDArray[np.int64]], plan: Plan) -> None:
    """Compare data, splits, plan, code and torch version of all ranks; [compute] may differ.

    Raises:
        DataError: as `RankGroup.check_identical`.
    """
    if group.world_size == 1:
        return
    written = {name: value for name, value in config.write(plan).items() if name != "compute"}
    rows = hashlib.sha256()
    for name in sorted(splits):
        rows.update(name.encode() + np.asarray(splits[name], "<i8").tobytes())
    group.check_identical(
        {
            "data": source.fingerprint(),
            "splits": rows.hexdigest(),
            "plan": hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest(),
            "code": hash_package_code(),
            "torch": torch.__version__,
        }
    )


def broadcast_plan(group: RankGroup, plan: Plan) -> Plan:
    """Rank 0's plan, with its measurements, and this rank's threads and workers."""
    if group.world_size == 1:
        return plan
    shared = config.read(Plan, group.broadcast_object(config.write(plan)), "the plan of rank 0")
    own_compute = dataclasses.replace(
        shared.compute, threads=plan.compute.threads, num_workers=plan.compute.num_workers
    )
    return dataclasses.replace(shared, compute=own_compute)


def round_up_batch_size(group: RankGroup, plan: Plan) -> Plan:
    """The plan with the next larger batch size that the ranks divide evenly."""
    each = group.world_size * plan.recipe.repeated_augmentation
    batch = -(-plan.recipe.batch_size // each) * each
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, batch_size=batch))


def check_plan_for_group(group: RankGroup, plan: Plan) -> None:
    """Check the plan against the number of ranks.

    Raises:
        UsageError: the batch cannot be divided, a strategy needs several ranks, or the fine-tuning method one.
    """
    batch, world, parts = plan.recipe.batch_size, group.world_size, plan.recipe.grad_accum_steps
    if batch % world:
        divisible = max(world, batch // world * world)
        raise UsageError(
            f"{batch} pictures a step cannot be shared by {world} processes. Use --recipe.batch_size {divisible}."
        )
    if parts > batch // world:
        raise UsageError(
            f"recipe.grad_accum_steps {parts} takes a step's pictures into more parts than each process has pictures, "
            f"{batch // world}. Use at most that."
        )
    if world > 1 and (plan.finetune.method != "full" or plan.finetune.freeze_blocks):
        tunes_all = plan.finetune.method == "full"
        setting = f"freeze_blocks {plan.finetune.freeze_blocks}" if tunes_all else f"method {plan.finetune.method}"
        raise UsageError(
            f"finetune.{setting} leaves weights as they are, which several processes cannot do yet. Start one without "
            "torchrun, or tune all of them with --finetune.method full --finetune.freeze_blocks 0."
        )
    if world == 1 and plan.compute.strategy != "auto":
        raise UsageError(
            f"compute.strategy {plan.compute.strategy} shares the work of several processes, and this one is alone. "
            "Start it with torchrun --nproc-per-node 2 -m vitrail train ..., or leave compute.strategy out."
        )


def hash_package_code() -> str:
    """SHA-256 over the package's source files."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
