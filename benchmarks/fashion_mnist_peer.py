"""Beside ours on Fashion-MNIST: timm's ViT of the same shape, its usual recipe, the same minutes, the same data path.

    python benchmarks/fashion_mnist_peer.py             # 20 minutes each: about 75 minutes, nothing else running
    python benchmarks/fashion_mnist_peer.py --minutes 5

The peer has the width, depth, heads, MLP and patch of our run, a class token and learned positions; AdamW with decay
0.05 on matrices, linear warm-up over 5 % of the steps and cosine decay to 0, label smoothing 0.1, shifts and mirrors,
and mixup 0.2 from 30 epochs on. Pictures, batches and number format are ours. Its rate is the best of three on the
validation pictures, two minutes each. Its pace is measured first and its steps fixed, as ours are. Nothing is evaluated
while the clock runs: both leave checkpoints, whose test accuracy is measured afterwards.

How much sooner: (1) a run of ours of fewer minutes and the same shape, whose own end is compared with the peer's end,
is the answer, because a person who wants to be done sooner asks for fewer minutes; (2) in our run of equal length, the
seconds after which a checkpoint has the peer's final accuracy, is shown beside it: half-way through its schedule it is
far from its best.
Writes benchmarks/results/peer-fashion-mnist-20min.json. Needs timm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fashion_mnist import folder_of, run
from making.full_size import declare_torchvision
from making.records import Results, Row, commit, number, seconds_at, train_run
from torch import Tensor, nn

from vitrail.data.loader import ImageStore, iter_batches
from vitrail.data.preprocess import normalize
from vitrail.evaluate.inference import InferenceSettings, run_inference
from vitrail.evaluate.tta import TtaViews
from vitrail.files import safetensors_file
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.train.batch_augment import augment_batch, mix_batch
from vitrail.train.dataset import Dataset, open_dataset
from vitrail.train.plan import Plan, Recipe
from vitrail.train.run_folder import RunFolder, describe_environment

RATES = (5e-4, 1e-3, 2e-3)
TRIAL_MINUTES = 2.0
CHECKPOINTS = 40
SHORTER = 6.5
"""How many times fewer minutes our second run has: a fifth of the peer's seconds, with room for a slower machine."""
MIXED_FROM = 30.0  # epochs


def main() -> None:
    """Ours first, because its plan says the shape; then the peer's rate, the peer, and the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--trial-minutes", type=float, default=TRIAL_MINUTES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    declare_torchvision()  # once, before timm imports it
    results = Results(f"peer-fashion-mnist-{options.minutes:g}min")
    case = cache(partial(peer_case, options.folder, options.minutes, options.seed))
    for rate in RATES:
        key = {"who": "peer's trial", "seed": options.seed, "rate": rate}
        row = results.row(key, lambda rate=rate: trial(case(), options.trial_minutes, rate))
        print(f"rate {rate:g}: {row['val_accuracy']:.4f} on val", flush=True)
    trials = [row for row in results.rows if row["who"] == "peer's trial"]
    rate = max(trials, key=lambda row: number(row, "val_accuracy"))["rate"]
    peer = results.row({"who": "peer", "seed": options.seed}, lambda: measured_peer(case(), options.minutes, rate))
    ours = folder_of(options.folder, options.minutes, options.seed)
    whole = results.row({"who": "ours", "seed": options.seed}, lambda: measured_ours(case(), ours))
    fewer = options.minutes / SHORTER
    key = {"who": "ours, in fewer minutes", "seed": options.seed, "minutes": fewer}
    short = results.row(key, lambda: shorter(case(), options.folder, fewer))
    found = comparison(whole, short, peer)
    print(found)
    results.write(found)


@dataclass(frozen=True)
class Case:
    """What both are given."""

    plan: Plan
    dataset: Dataset
    pictures: ImageStore
    test: ImageStore

    @classmethod
    def of(cls, ours: Path) -> Case:
        """From a run of ours."""
        plan = RunFolder(ours).read_plan()
        torch.set_num_threads(plan.compute.threads or torch.get_num_threads())
        dataset = open_dataset(plan.data, plan.seed, RunFolder(ours))
        workers = plan.compute.num_workers
        train = dataset.load_training_images(plan.image, None, workers)
        return cls(plan, dataset, train, dataset.load_images("test", plan.image, workers))


def peer_case(folder: Path, minutes: float, seed: int) -> Case:
    """The case after our run, which is made if it is not there."""
    run(folder, minutes, seed)
    return Case.of(folder_of(folder, minutes, seed))


def make_peer(config: ViTConfig) -> nn.Module:
    """timm's ViT of a shape of ours."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=config.image_size, patch_size=config.patch, in_chans=config.channels, num_classes=config.outputs,
        embed_dim=config.width, depth=config.depth, num_heads=config.heads, mlp_ratio=config.mlp_width / config.width,
    )  # fmt: skip


def usual(batch: int, rate: float, steps: int, pictures: int, padding: int) -> Recipe:
    """The usual recipe for so many steps."""
    epochs = steps * batch / pictures
    return Recipe(
        steps=steps, batch_size=batch, optimizer="adamw", lr=rate, weight_decay=0.05, warmup=0.05, lr_schedule="cosine",
        label_smoothing=0.1, crop_padding=padding, flip=True, mixup=0.2 if epochs >= MIXED_FROM else 0.0,
    )  # fmt: skip


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; norms, biases, positions and the class token are not decayed, as timm's `no_weight_decay` has it."""
    spared = model.no_weight_decay()
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and name not in spared]
    rest = [p for name, p in model.named_parameters() if p.ndim <= 1 or name in spared]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.lr)


def learn(model: nn.Module, case: Case, recipe: Recipe) -> Iterator[float]:
    """Train to the recipe's last step; the seconds of each."""
    plan, optimizer = case.plan, optimizer_of(model, recipe)
    model.train()
    began = time.perf_counter()
    batches = iter_batches(case.pictures, case.dataset.loss_targets("train"), recipe.batch_size, plan.seed)
    for step, epoch, batch in islice(batches, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * recipe.lr_factor(step)
        shown = augment_batch(batch, recipe, plan.seed, epoch)
        shown, expected, _ = mix_batch(shown, batch, recipe, plan.seed, epoch, plan.model.outputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.compute.precision == "bfloat16"):
            logits = model(normalize(shown, plan.image))
        loss = F.cross_entropy(logits.float(), expected, label_smoothing=recipe.label_smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began
        began = time.perf_counter()


Kept = list[tuple[float, dict[str, Tensor]]]


def train_peer(case: Case, minutes: float, rate: float) -> tuple[nn.Module, Recipe, Kept]:
    """Measure the pace, fix the steps, train; the weights at forty moments, with the seconds until then."""
    batch, pictures = case.plan.recipe.batch_size, len(case.pictures.indices)
    padding = min(case.plan.model.image_size) // 28
    torch.manual_seed(case.plan.seed)
    trial = usual(batch, rate, 1000, pictures, padding)
    paces = list(islice(learn(make_peer(case.plan.model), case, trial), 14))[2:]
    recipe = usual(batch, rate, max(CHECKPOINTS, round(60 * minutes / float(np.mean(paces)))), pictures, padding)
    torch.manual_seed(case.plan.seed)
    model, kept, seconds = make_peer(case.plan.model), [], 0.0
    moments = set(np.linspace(0, recipe.steps, CHECKPOINTS + 1).round().astype(int).tolist())
    for step, took in enumerate(learn(model, case, recipe), 1):
        seconds += took
        if step in moments:
            kept.append((seconds, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
    return model, recipe, kept


def trial(case: Case, minutes: float, rate: float) -> Row:
    """A short training of the peer, judged on the validation pictures."""
    model, recipe, _ = train_peer(case, minutes, rate)
    valid = case.dataset.load_images("val", case.plan.image, case.plan.compute.num_workers)
    return {"val_accuracy": accuracy(model, case, "val", valid, TtaViews()), "steps": recipe.steps}


def measured_peer(case: Case, minutes: float, rate: float) -> Row:
    """The peer's whole training and its curve."""
    model, recipe, kept = train_peer(case, minutes, rate)
    curve = []
    for seconds, weights in kept:
        model.load_state_dict(weights)
        curve.append([round(seconds, 1), accuracy(model, case, "test", case.test, TtaViews())])
    facts = {"steps": recipe.steps, "rate": rate, "mixup": recipe.mixup, "batch": recipe.batch_size}
    views = case.plan.recipe.views
    seen = {"accuracy_with_our_views": accuracy(model, case, "test", case.test, views), "views": views.num_views}
    return {**curve_with_end(curve), **seen, **facts, **sizes(model)}


def measured_ours(case: Case, ours: Path) -> Row:
    """The curve of a run of ours, from the checkpoints that it left."""
    plan = case.plan
    model, seconds, curve = create_model(plan.model, plan.seed), seconds_at(ours), []
    for folder in sorted((ours / "history").glob("step-*")):
        weights = model.state_dict()
        for name in ("model.safetensors", "average.safetensors"):
            weights |= safetensors_file.load_tensors(folder / name) if (folder / name).is_file() else {}
        model.load_state_dict(weights)
        at = seconds(int(folder.name.removeprefix("step-")))
        curve.append([round(at, 1), accuracy(model, case, "test", case.test, plan.recipe.views)])
    facts = {"views": plan.recipe.views.num_views, "steps": plan.recipe.steps, "batch": plan.recipe.batch_size}
    return {**curve_with_end(curve), **facts, **sizes(model)}


def shorter(case: Case, folder: Path, minutes: float) -> Row:
    """Our run of fewer minutes with the model of the longer one; the plan alone might take a smaller."""
    words = ("--minutes", minutes, "--seed", case.plan.seed, "--model", case.plan.model_name)
    run_folder = folder / f"peer-fashion-mnist-{minutes:g}min-seed{case.plan.seed}"
    return train_run(run_folder, "fashion-mnist", *words)


def accuracy(model: nn.Module, case: Case, split: str, pictures: ImageStore, views: TtaViews) -> float:
    """Share of a split that is answered rightly, over these views of each picture."""
    rows, plan = case.dataset.splits[split], case.plan
    settings = InferenceSettings(
        device=plan.compute.device, precision=plan.compute.precision, views=views, batch_size=250
    )
    answers = run_inference(model, pictures, rows, plan.image, settings).argmax(1)
    return float((answers == case.dataset.targets(split)).mean())


def curve_with_end(curve: list[list[float]]) -> Row:
    """A curve and where it ends."""
    return {"accuracy": curve[-1][1], "seconds": curve[-1][0], "curve": curve}


def sizes(model: nn.Module) -> Row:
    """How large, on what."""
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "machine": describe_environment(),
        "commit": commit(),
    }


def seconds_to_reach(curve: list[list[float]], goal: float) -> float | None:
    """The seconds of the first checkpoint that is at least this good."""
    return next((seconds for seconds, value in curve if value >= goal), None)


def comparison(ours: Row, short: Row, peer: Row) -> Row:
    """When ours has the peer's last accuracy, and our run of fewer minutes: both as shares of the peer's time too."""
    seconds, whole = seconds_to_reach(ours["curve"], number(peer, "accuracy")), number(peer, "seconds")
    fewer = number(short, "seconds")
    way = {"ours_reaches_it_after": seconds, "share": None if seconds is None else seconds / whole}
    beside = {"short": short["accuracy"], "short_seconds": fewer, "short_share": fewer / whole}
    return {"ours": ours["accuracy"], "peer": peer["accuracy"], **way, **beside}


if __name__ == "__main__":
    main()
