"""One GPU: whether its paths give what the processor gives, and how fast it trains and answers.

    python benchmarks/gpu.py                 # ViT-B/16 and a small set; on an H100 about ten minutes, to be measured
    python benchmarks/gpu.py --dry-run       # the same code with tiny shapes, on any machine; writes nothing

Writes benchmarks/results/gpu-*.json. Figures are medians over steps after a warm-up; the loop that is timed is
`train.loop.train`, with loading, augmentation, optimiser and guards, so a rate is what a training gets. With timm
installed its ViT stands beside ours, both compiled, in turns. Goals on an H100, each printed with whether it is met:
training of ViT-B/16 3,000 pictures a second (4,200 is the higher goal), answers 12,000 in batches of 256 and 1.0 ms for
a lone picture, and 1.15 times timm.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from making.gpu_peer import compare_with_timm
from torch.nn.utils import parameters_to_vector

from vitrail.data.loader import InMemoryImageStore
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.errors import MachineWarning
from vitrail.evaluate.inference import InferenceSettings, run_inference
from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train import cuda_graphs
from vitrail.train.loop import build_train_state, train_steps
from vitrail.train.plan import ComputeSettings, Plan, Recipe

RESULTS = Path(__file__).parent / "results"
WARM_UP, MEASURED = 12, 40
LARGE = ("vit_base_patch16_224", 1000, 256, 2048)  # model, classes, batch, pictures
SMALL = ("vit_nano_patch4_28", 10, 1024, 60_000)
TINY = ("vit_mu_patch8_16", 3, 8, 64)
ANSWERED = 256
"""Pictures of a large batch of answers."""
GOALS = (
    ("train vit_base_patch16_224", "images/s", 3000.0),
    ("train vit_base_patch16_224", "images/s", 4200.0),
    (f"answers beside timm, batch {ANSWERED},", "vitrail images/s", 12000.0),
    ("answers beside timm, batch 1,", "vitrail images/s", 1000.0),
    ("training beside timm", "times as fast", 1.15),
    (f"answers beside timm, batch {ANSWERED},", "times as fast", 1.15),
)
"""The beginning of a row, the figure in it, and what it should reach on an H100; a thousand lone pictures a second are
one in 1.0 ms."""


def main() -> None:
    """Measure every row, print it, keep all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, nothing written")
    dry = parser.parse_args().dry_run
    if not dry and not torch.cuda.is_available():
        raise SystemExit("There is no GPU that torch can use here. --dry-run tries the code without one.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, object]] = []
    for row in measure_all(device, dry):
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if not dry:
            write(rows)
    if not dry:
        for line in verdicts(rows):
            print(line)


def write(rows: list[dict[str, object]]) -> None:
    """What is measured so far: a machine that is lent can be taken back at any time."""
    RESULTS.mkdir(exist_ok=True)
    name = torch.cuda.get_device_name()
    facts = {"gpu": name, "torch": torch.__version__, "rows": rows}
    path = RESULTS / f"gpu-{name.lower().replace(' ', '-')}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def measure_all(device: str, dry: bool) -> Iterator[dict[str, object]]:
    """Right first, then fast."""
    yield {"row": "resident pictures: device and processor agree", "passed": same_pictures(device)}
    formats = ("float32", "bfloat16", "float16") if device == "cuda" else ("float32", "bfloat16")
    for number_format in formats:
        yield {"row": f"twenty steps against float32 on the processor, {number_format}"} | agreement(
            device, number_format
        )
    if device == "cuda":
        yield from recorded_steps(device)
    large, small = (TINY, TINY) if dry else (LARGE, SMALL)
    for compiled in (False,) if dry else (False, True):
        for optimizer in ("adamw", "muon"):
            yield training(f"train {large[0]}", large, device, optimizer, compiled, dry)
    yield answering(large, device, dry)
    if importlib.util.find_spec("timm"):
        yield from compare_with_timm(plan(large, device, "bfloat16", compiled=not dry), ANSWERED, device, dry)
    else:
        yield {"row": "timm is not installed, so there is nothing beside ours"}
    for compiled in (False,) if dry else (False, True):
        for where in ("device", "processor"):
            yield training(f"train {small[0]}, pictures on the {where}", small, device, "muon", compiled, dry, where)


def verdicts(rows: list[dict[str, object]]) -> Iterator[str]:
    """Each goal, the best figure found for it, and whether that is enough."""
    for begins, name, goal in GOALS:
        found = [float(str(row[name])) for row in rows if str(row["row"]).startswith(begins) and name in row]
        reached = format_value(max(found)) if found else "not measured"
        verdict = "" if not found else ": met" if max(found) >= goal else ": missed"
        yield f"goal {begins.rstrip(',')}, {name} {format_value(goal)}: {reached}{verdict}"


def format_value(figure: float) -> str:
    """A rate in whole pictures, a ratio with two digits."""
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2f}"


def training(
    row: str,
    shape: tuple[str, int, int, int],
    device: str,
    optimizer: str,
    compiled: bool,
    dry: bool,
    where: str = "device",
) -> dict[str, object]:
    """Pictures a second of the real loop, in bfloat16, and the share of the model's arithmetic in a second."""
    trained_plan = plan(shape, device, "bfloat16", optimizer=optimizer, compiled=compiled)
    held = pictures(trained_plan, shape[3])
    if where == "processor":
        held = _OnProcessor(held)
    targets = np.arange(shape[3]) % shape[1]
    steps = train_steps(
        build_train_state(create_model(trained_plan.model, 0), trained_plan), held, targets, trained_plan
    )
    warm, counted = (2, 4) if dry else (WARM_UP, MEASURED)
    began = time.perf_counter()
    for _ in range(warm):
        next(steps)
    first = time.perf_counter() - began
    seconds = statistics.median(next(steps).seconds for _ in range(counted))
    steps.close()
    rate = shape[2] / seconds
    return {
        "row": row, "optimizer": optimizer, "compiled": compiled, "images/s": round(rate, 1),
        "ms a step": round(1000 * seconds, 2), "TFLOP/s": round(3 * rate * flops(trained_plan.model) / 1e12, 1),
        "warm-up s": round(first, 1), "GiB": memory(device),
    }  # fmt: skip


def answering(shape: tuple[str, int, int, int], device: str, dry: bool) -> dict[str, object]:
    """Pictures a second of `evaluate.collect`, in bfloat16."""
    trained_plan = plan(shape, device, "bfloat16")
    held = pictures(trained_plan, shape[3])
    model = create_model(trained_plan.model, 0).to(device)
    settings = InferenceSettings(device=device, precision="bfloat16", batch_size=shape[2])
    seconds = []
    for _ in range(2 if dry else 4):
        began = time.perf_counter()
        run_inference(model, held, held.indices, trained_plan.image, settings)
        seconds.append(time.perf_counter() - began)
    rate = shape[3] / min(seconds)
    tera = rate * flops(trained_plan.model) / 1e12
    return {"row": f"answer {shape[0]}", "images/s": round(rate, 1), "TFLOP/s": round(tera, 1), "GiB": memory(device)}


def agreement(device: str, number_format: str) -> dict[str, object]:
    """The loss of twenty steps on the device beside those of the processor, from the same start."""
    found = []
    for where, kind in (("cpu", "float32"), (device, number_format)):
        trained_plan = plan(TINY, where, kind, optimizer="adamw")
        steps = train_steps(
            build_train_state(create_model(trained_plan.model, 0), trained_plan),
            pictures(trained_plan, TINY[3]),
            np.arange(TINY[3]) % TINY[1],
            trained_plan,
        )
        found.append([next(steps).loss for _ in range(20)])
        steps.close()
    furthest = float(np.abs(np.subtract(*found)).max())
    return {
        "largest difference": round(furthest, 6),
        "passed": furthest < (1e-3 if number_format == "float32" else 0.1),
    }


def recorded_steps(device: str) -> Iterator[dict[str, object]]:
    """Steps recorded as CUDA graphs beside the same without: equal losses, and weights equal to the bit."""
    cases: dict[str, dict[str, Any]] = {
        "muon": {}, "mixup": {"mixup": 0.2}, "fewer patches": {"patch_keep_rate": 0.5, "patch_keep_until": 0.5},
        "small pictures": {"progressive_size": 0.5, "progressive_until": 0.5}, "float16": {},
    }  # fmt: skip
    for name, fields in cases.items():
        trained_plan = plan(TINY, device, "float16" if name == "float16" else "bfloat16", optimizer="muon")
        trained_plan = dataclasses.replace(
            trained_plan, recipe=dataclasses.replace(trained_plan.recipe, steps=20, **fields)
        )
        found = []
        for recorded in (True, False):
            with (
                warnings.catch_warnings(),
                patch.object(cuda_graphs, "can_record", lambda *_, recorded=recorded: recorded),
            ):
                warnings.simplefilter("error", MachineWarning)
                state = build_train_state(create_model(trained_plan.model, 0), trained_plan)
                held, targets = pictures(trained_plan, TINY[3]), np.arange(TINY[3]) % TINY[1]
                losses = [each.loss for each in train_steps(state, held, targets, trained_plan)]
            found.append((losses, parameters_to_vector(state.model.parameters()).detach()))
        same = found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
        yield {"row": f"recorded steps give the same bits, {name}", "passed": same}


def same_pictures(device: str) -> bool:
    """Whether pictures gathered and cut on the device are those of the processor; a grey level for other sums."""
    drawn = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = np.array([5, 3, 60, 5])
    plain = InMemoryImageStore(drawn)
    if not torch.equal(plain.to(device).take(rows).cpu(), plain.take(rows)):
        return False
    cut = InMemoryImageStore(drawn, random_crop=RandomResizedCrop(0, scale=(0.3, 1.0), mirror=True))
    apart = cut.to(device).take(rows, epoch=2).cpu().int() - cut.take(rows, epoch=2).int()
    return bool((apart.abs() <= 1).all())


def plan(
    shape: tuple[str, int, int, int],
    device: str,
    number_format: str,
    optimizer: str = "adamw",
    compiled: bool = False,
) -> Plan:
    """A training without end of a named model."""
    model = dataclasses.replace(config_from_name(shape[0]), outputs=shape[1])
    image = ImageSpec(height=model.image_size[0], width=model.image_size[1], channels=model.channels)
    recipe = Recipe(steps=100_000, batch_size=shape[2], optimizer=optimizer, flip=True, crop_padding=1, warmup=0.0)
    compute = ComputeSettings(device=device, precision=number_format, compile=compiled)
    return Plan(model=model, image=image, recipe=recipe, compute=compute)


def pictures(trained_plan: Plan, count: int) -> InMemoryImageStore:
    """Noise, decoded."""
    shape = (count, trained_plan.image.channels, *trained_plan.image.size)
    return InMemoryImageStore(
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    )


def flops(model: ViTConfig) -> float:
    """Operations of the matrix products of one picture's forward pass."""
    tokens, width = model.grid.patches + model.prefix, model.width
    block = 2 * tokens * (4 * width**2 + 2 * width * model.mlp_width) + 4 * tokens**2 * width
    patches = 2 * model.grid.patches * width * model.channels * model.patch[0] * model.patch[1]
    return model.depth * block + patches + 2 * width * model.outputs


def memory(device: str) -> float:
    """The highest point since the last call."""
    if device != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 2)


class _OnProcessor:
    """The same pictures, in a class that is not brought to the GPU at once but batch by batch."""

    def __init__(self, held: InMemoryImageStore):
        self.indices = held.indices
        self.take = held.take
        self.begin = held.begin


if __name__ == "__main__":
    main()
