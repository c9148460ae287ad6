"""Two processes that train one tiny model, compared with one alone. Run as a program of its own, by `partners.start`:
each process does all of it, and rank 0 prints what it found as JSON.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from vitrail.data.loader import InMemoryImageStore
from vitrail.errors import DivergedError, PeerError, UsageError, VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train import checkpoint
from vitrail.train.custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from vitrail.train.distributed.collectives import SINGLE_PROCESS, RankGroup, join_group
from vitrail.train.distributed.fsdp import to_full_tensor
from vitrail.train.loop import TrainState, build_train_state, gather_train_state, train_steps
from vitrail.train.plan import ComputeSettings, Plan, Recipe

MODEL = ViTConfig(
    image_size=(8, 8), patch=(2, 2), channels=1, width=16, depth=2, heads=2, mlp_width=24, outputs=3, init="torch",
    key_bias=False,  # no softmax sees it: its gradient is rounding error, of which AdamW makes steps of full size
)  # fmt: skip
PLAN = Plan(
    model=MODEL,
    image=ImageSpec(height=8, width=8, channels=1),
    recipe=Recipe(
        steps=20,
        batch_size=8,
        optimizer="adamw",
        lr=1e-3,
        ema_decay=0.9,
        crop_padding=1,
        flip=True,
        patch_keep_rate=0.5,
        patch_keep_until=0.5,
        grad_clip_norm=1.0,
    ),
    compute=ComputeSettings(threads=1),
)
IMAGES = torch.randint(0, 256, (28, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
CLASSES = np.arange(28) % 3
CELLS = np.where(np.random.default_rng(1).random((28, 3)) < 0.6, np.nan, np.random.default_rng(0).random((28, 3)))


def plan(engine: str = "auto", **recipe: object) -> Plan:
    compute = dataclasses.replace(PLAN.compute, strategy=engine)
    return dataclasses.replace(PLAN, compute=compute, recipe=dataclasses.replace(PLAN.recipe, **recipe))


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of one's own, a number for each picture: squared distance of softmax and class."""
    return (outputs.softmax(1) - F.one_hot(targets, 3)).square().sum(1)


def trained(
    asked: Plan, team: RankGroup, targets: np.ndarray = CLASSES, brought: CustomFunctions = NO_CUSTOM_FUNCTIONS
) -> tuple[TrainState, list[float]]:
    learner = build_train_state(create_model(MODEL, seed=1), asked, team)
    task = "classification" if targets.ndim == 1 else "regression"
    steps = train_steps(
        learner, InMemoryImageStore(IMAGES), targets, asked, 0, None, task, group=team, custom_functions=brought
    )
    return learner, [step.loss for step in steps]


def gradients(engine: str, team: RankGroup) -> list[torch.Tensor]:
    """A tenth of those of the first step, as AdamW's first moment keeps them."""
    learner, _ = trained(plan(engine, steps=1, grad_clip_norm=0.0), team)
    return [to_full_tensor(moments["exp_avg"]) * 10 for moments in learner.optimizers[0].state.values()]


def weights(learner: TrainState, asked: Plan, team: RankGroup) -> list[torch.Tensor]:
    whole = gather_train_state(learner, asked, team)
    assert whole.ema is not None
    return [p.detach().clone() for p in whole.model.parameters()] + list(whole.ema.weights.values())


def furthest(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)) if ours else 0.0


def equalities(team: RankGroup) -> dict[str, float]:
    """The largest difference to one process, kind by kind."""
    found = {}
    reference = gradients("auto", SINGLE_PROCESS)
    for engine in ("ddp", "fsdp"):
        found[f"{engine} gradients"] = furthest(gradients(engine, team), reference)
    kinds: dict[str, tuple[dict[str, object], np.ndarray, CustomFunctions]] = {
        "adamw": ({}, CLASSES, NO_CUSTOM_FUNCTIONS),
        "muon": ({"optimizer": "muon"}, CLASSES, NO_CUSTOM_FUNCTIONS),
        "unknown cells": ({}, CELLS.astype(np.float32), NO_CUSTOM_FUNCTIONS),
        "own loss": ({}, CLASSES, CustomFunctions(loss=squared)),
    }
    for kind, (recipe, targets, brought) in kinds.items():
        alone, losses = trained(plan(**recipe), SINGLE_PROCESS, targets, brought)
        theirs = weights(alone, plan(**recipe), SINGLE_PROCESS)
        for engine in ("ddp", "fsdp"):
            for parts in (1, 2):
                asked = plan(engine, grad_accum_steps=parts, **recipe)
                learner, told = trained(asked, team, targets, brought)
                found[f"{engine} {kind}, {parts} parts"] = furthest(weights(learner, asked, team), theirs)
                found[f"{engine} {kind}, {parts} parts, losses"] = float(np.abs(np.subtract(told, losses)).max())
    return found


def resumed(team: RankGroup, folder: Path) -> dict[str, float]:
    """A sharded checkpoint of ten steps, gone on with by each engine and by one process alone."""
    first, _ = trained(plan("fsdp", steps=20), team)
    unbroken = weights(first, plan("fsdp"), team)
    learner = build_train_state(create_model(MODEL, seed=1), plan("fsdp"), team)
    steps = train_steps(learner, InMemoryImageStore(IMAGES), CLASSES, plan("fsdp"), group=team)
    for _ in range(10):
        next(steps)
    shares = checkpoint.make_sharded_save(learner, team)
    if team.is_rank0:
        checkpoint.save_checkpoint(folder, 10, learner.model, learner.optimizers, learner.ema, sharded_save=shares)
        shares.close()
    else:
        shares.help_rank0()
    team.broadcast_object()
    found = {}
    for engine, who in (("fsdp", team), ("ddp", team), ("auto", SINGLE_PROCESS)):
        again = build_train_state(create_model(MODEL, seed=1), plan(engine), who)
        start = checkpoint.load_checkpoint(folder / "step-00000010", again.model, again.optimizers, again.ema)
        list(train_steps(again, InMemoryImageStore(IMAGES), CLASSES, plan(engine), start, group=who))
        found[f"resumed by {engine}"] = furthest(weights(again, plan(engine), who), unbroken)
    return found


def said(work: Callable[[], object]) -> str:
    try:
        return repr(work())
    except VitrailError as error:
        return f"{type(error).__name__}: {error}"


def words(team: RankGroup) -> dict[str, object]:
    """What the processes tell each other, and how the leader's errors are everybody's."""

    def refuse() -> None:
        raise UsageError("Not here.")

    told = {
        "told": team.broadcast_object({"who": team.rank}),
        "gathered": team.all_gather_object(["rank", team.rank]),
        "most": team.all_reduce_max(team.rank, 5 - team.rank),
        "led": team.run_on_rank0(lambda: team.rank),
        "refused": said(lambda: team.run_on_rank0(refuse)),
        "same": said(lambda: team.check_identical({"data": "abc", "code": f"version {team.rank}"})),
    }
    assert team.all_gather_object(told["refused"]) == [told["refused"]] * 2
    return told


def poisoned(team: RankGroup) -> dict[str, object]:
    """F5: pictures of rank 1 give a loss that is not finite, and rank 0 does not step either."""
    asked = plan("ddp", optimizer="adamw")
    targets = CELLS.astype(np.float32).copy()
    learner = build_train_state(create_model(MODEL, seed=1), asked, team)
    before = [p.detach().clone() for p in learner.model.parameters()]
    if team.rank == 1:
        targets[:] = 1e30
    try:
        list(train_steps(learner, InMemoryImageStore(IMAGES), targets, asked, task="regression", group=team))
        outcome = "nobody noticed"
    except DivergedError as error:
        outcome = f"{type(error).__name__}"
    return {"outcome": outcome, "moved": furthest(list(learner.model.parameters()), before)}


def slow(team: RankGroup, seconds: float, patience: float = 60) -> str:
    """H5: rank 1 answers late."""
    team._step_group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=patience))
    try:
        if team.rank == 1:
            time.sleep(seconds)
        return repr(team.all_reduce_max(team.rank))
    except PeerError as error:
        return f"PartnerError: {error}"


def main() -> None:
    """Do all of it, and print it as JSON."""
    torch.set_num_threads(1)
    with join_group("cpu", 60) as team:
        found = {
            "equal": equalities(team),
            "resumed": resumed(team, Path(sys.argv[1])),
            "words": words(team),
            "poisoned": poisoned(team),
        }
    with join_group("cpu", 60) as team:  # once more in the same processes, as a program that trains twice
        found["slow"] = slow(team, 5)
        found["too slow"] = slow(team, 6, patience=3)
    if team.is_rank0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
