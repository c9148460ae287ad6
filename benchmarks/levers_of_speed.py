"""What each lever of speed is worth: the same work with it and without it, in turn, in one process.

    python benchmarks/levers_of_speed.py                # about two minutes, nothing else running
    python benchmarks/levers_of_speed.py --quick        # tiny shapes, one round; writes nothing

Every lever is a pair of jobs that give the same numbers, or numbers of another rounding: as Vitrail does it, and as it
is done without. Levers that are not kept stand here too, so that a newer torch or another machine can be asked again.
Writes benchmarks/results/levers-of-speed.json.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.bench import measure
from vitrail.bench.measure import BenchmarkJob, InterleavedTimer
from vitrail.evaluate.inference import num_parallel_parts, run_in_parallel
from vitrail.model import positions
from vitrail.model.config import ViTConfig
from vitrail.model.layers import cast_linear_weights
from vitrail.model.registry import config_from_name
from vitrail.model.tokens import gather_tokens
from vitrail.model.vit import ViT, create_model
from vitrail.runtime import cpu_supports_bfloat16
from vitrail.train.optim import Muon

RESULTS = Path(__file__).parent / "results"
ROUNDS = 9
WIDE, SMALL, QUICK = ("vit_small_patch16_224", 16), ("vit_pico_patch4_28", 512), ("vit_mu_patch8_16", 2)
Shape = tuple[str, int]
"""A named model and a batch."""


class Lever(NamedTuple):
    """The same work twice."""

    name: str
    shape: Shape
    used: BenchmarkJob
    unused: BenchmarkJob
    kept: bool
    """Whether Vitrail does it."""


def main() -> None:
    """Time every pair, print a table, keep all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one round; nothing written")
    quick = parser.parse_args().quick
    rows = []
    for lever in levers(*(QUICK, QUICK) if quick else (WIDE, SMALL)):
        rows.append(time_both(lever, 1 if quick else ROUNDS, 0.0 if quick else 0.3))
        print(format_row(rows[-1]), flush=True)
    if not quick:
        text = json.dumps({"machine": measure.describe_machine("cpu"), "rounds": ROUNDS, "rows": rows}, indent=1)
        (RESULTS / "levers-of-speed.json").write_text(text + "\n", encoding="utf-8")


def time_both(lever: Lever, rounds: int, least: float) -> dict[str, object]:
    """Milliseconds of both, medians over interleaved rounds."""
    clock = InterleavedTimer({"used": lever.used, "unused": lever.unused}, min_seconds=least)
    clock.run(rounds)
    used, unused = clock.timing("used"), clock.timing("unused")
    return {
        "lever": lever.name, "model": lever.shape[0], "batch": lever.shape[1], "kept": lever.kept,
        "used_ms": used.median * 1e3, "unused_ms": unused.median * 1e3, "times": unused.median / used.median,
        "spread": max(used.spread, unused.spread),
    }  # fmt: skip


def format_row(row: dict[str, object]) -> str:
    """A row as a line."""
    kept = "kept" if row["kept"] else "not kept"
    return (
        f"{row['lever']:44} {row['model']} x {row['batch']}: {row['unused_ms']:.3g} -> {row['used_ms']:.3g} ms, "
        f"{row['times']:.3f} times as fast, spread {row['spread']:.0%}, {kept}"
    )


def levers(wide: Shape, small: Shape) -> Iterator[Lever]:
    """Every pair; each is made when its turn comes, so that only one lies in memory."""
    config = dataclasses.replace(config_from_name(wide[0]), outputs=10)
    model, images = create_model(config).eval(), pictures(config, wide[1])
    whole = copy.deepcopy(model)
    whole.pool.pool_tokens = None
    name = "last block for the class token alone, {}"
    yield Lever(name.format("answers"), wide, answers(model, images), answers(whole, images), True)
    yield Lever(name.format("training"), wide, steps(model, images), steps(whole, images), True)
    closed = create_model(dataclasses.replace(config, attention="fused"))
    yield Lever("attention opened where its table says", wide, steps(model, images), steps(closed, images), True)
    cast = cast_linear_weights(model.eval(), torch.bfloat16)
    for batch in (wide[1], 1):
        used, unused = answers(cast, images[:batch]), answers(model, images[:batch])
        yield Lever("matrices cast to bfloat16 once", (wide[0], batch), used, unused, True)
    yield Lever("whole pictures for each core", wide, *apart_and_shared(model, images), True)
    yield Lever("tables of rotary positions kept", (small[0], 1), *tables_kept(small[0]), True)
    yield Lever("queries, keys, values by one product", wide, *joint_and_apart(config, images), True)
    folded = create_model(dataclasses.replace(config, patches="linear")).eval()
    yield Lever("patches by a matrix for a convolution", wide, answers(folded, images), answers(model, images), False)
    by_channel = images.contiguous(memory_format=torch.channels_last)
    yield Lever("pictures with channels last", wide, answers(model, by_channel), answers(model, images), False)
    for of in (wide, small):
        yield Lever("one kernel for AdamW", of, *adamw(config_from_name(of[0])), True)
        yield Lever("Muon takes matrices of a shape at once", of, *muon(config_from_name(of[0])), True)
    yield Lever("patches dropped before they are embedded", small, *patch_dropout_cases(small), True)


def pictures(config: ViTConfig, batch: int) -> Tensor:
    """Prepared pictures with nothing in them."""
    return torch.randn(batch, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))


def answers(model: nn.Module, images: Tensor) -> BenchmarkJob:
    """Outputs in bfloat16."""

    def job() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            model(images)

    return job


def steps(model: nn.Module, images: Tensor, *more: Tensor) -> BenchmarkJob:
    """Forward and backward in bfloat16."""
    learning = copy.deepcopy(model).train()

    def job() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = learning(images, *more).float().square().mean()
        total.backward()
        learning.zero_grad()

    return job


def apart_and_shared(model: ViT, images: Tensor) -> tuple[BenchmarkJob, BenchmarkJob]:
    """Answers in float32 where each core has pictures of its own, and where all share every operation."""
    raw = torch.randint(256, images.shape, dtype=torch.uint8)
    parts = max(2, num_parallel_parts(model, raw, raw.device, "float32"))

    def answer(part: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(part / 255)

    return lambda: run_in_parallel(answer, raw, parts), lambda: answer(raw)


def tables_kept(name: str) -> tuple[BenchmarkJob, BenchmarkJob]:
    """Answers to one picture of a model with rotary positions: tables made once, and for every forward."""
    config = dataclasses.replace(config_from_name(name), rotary="axial")
    model, image = create_model(config).eval(), pictures(config, 1)
    answer = answers(model, image)

    def made_again() -> None:
        made, positions._cached_rotary_tables = (
            positions._cached_rotary_tables,
            positions._cached_rotary_tables.__wrapped__,
        )  # type: ignore[attr-defined]
        try:
            answer()
        finally:
            positions._cached_rotary_tables = made

    return answer, made_again


def joint_and_apart(config: ViTConfig, images: Tensor) -> tuple[BenchmarkJob, BenchmarkJob]:
    """Products of all tokens of a batch with the joint matrix, and with its three parts."""
    tokens = torch.randn(len(images), config.tokens, config.width).bfloat16()
    matrix = torch.randn(3 * config.width, config.width).bfloat16()
    parts = [part.contiguous() for part in matrix.chunk(3)]
    return lambda: F.linear(tokens, matrix), lambda: [F.linear(tokens, part) for part in parts]


def adamw(config: ViTConfig) -> tuple[BenchmarkJob, BenchmarkJob]:
    """A step of all parameters by one kernel each, and by torch's own choice."""
    return tuple(_stepping(create_model(config), fused) for fused in (True, None))  # type: ignore[return-value]


def muon(config: ViTConfig) -> tuple[BenchmarkJob, BenchmarkJob]:
    """A step of the blocks' matrices in stacks of one shape, and a matrix after the other."""
    return tuple(_orthogonal(create_model(config), apart) for apart in (False, True))  # type: ignore[return-value]


def _orthogonal(model: ViT, apart: bool) -> BenchmarkJob:
    matrices = [parameter for parameter in model.encoder.blocks.parameters() if parameter.ndim == 2]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    compute = torch.bfloat16 if cpu_supports_bfloat16() else torch.float32  # as train/stepping/optimizer.py chooses
    stacks = [[one] for one in matrices] if apart else [matrices]
    optimizers = [Muon([{"params": each}], lr=1e-6, compute=compute) for each in stacks]

    def job() -> None:
        for one in optimizers:
            one.step()

    return job


def _stepping(model: ViT, fused: bool | None) -> BenchmarkJob:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused).step


def patch_dropout_cases(shape: Shape) -> tuple[BenchmarkJob, BenchmarkJob]:
    """Training steps with half the patches: left out before the projection, and after it."""
    config = config_from_name(shape[0])
    images = pictures(config, shape[1])
    order = torch.rand(len(images), config.grid.patches, generator=torch.Generator().manual_seed(1)).argsort(1)
    visible = order[:, : config.grid.patches // 2].sort(1).values
    early, late = create_model(config), create_model(config)
    projected: Callable[..., Tensor] = late.tokens.patches.forward
    late.tokens.patches.forward = lambda pictures, rows=None: gather_tokens(projected(pictures), rows)  # type: ignore
    return steps(early, images, visible), steps(late, images, visible)


if __name__ == "__main__":
    main()
