"""What `vitrail inspect --cost` says of a step, answers and memory, beside what they take on this machine.

    python benchmarks/cost_model.py                # about ten minutes; nothing else should be running
    python benchmarks/cost_model.py --quick        # two tiny rows, nothing written

Each row is two processes: one foretells from two shallow copies of the model, one runs the whole model and looks at its
own memory. Memory of a process begins with what it holds before the model is made, on both sides. The goal is at least
ten rows within a quarter. Writes benchmarks/results/cost-model.json and a table in Markdown beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from making.records import RESULTS, Results, Row

CLOSE = 0.25
ROWS = (
    ("vit_tiny_patch16_224", 16, "float32", "adamw"),
    ("vit_tiny_patch16_224", 16, "bfloat16", "adamw"),
    ("vit_tiny_patch16_224", 64, "bfloat16", "muon"),
    ("vit_tiny_patch4_32", 128, "bfloat16", "adamw"),
    ("vit_nano_patch4_28", 250, "bfloat16", "muon"),
    ("vit_micro_patch4_32", 128, "float32", "muon"),
    ("vit_small_patch16_224", 8, "float32", "adamw"),
    ("vit_small_patch16_224", 16, "bfloat16", "adamw"),
    ("vit_small_patch16_224", 16, "bfloat16", "muon"),
    ("vit_base_patch16_224", 4, "bfloat16", "adamw"),
    ("vit_base_patch16_224", 8, "bfloat16", "adamw"),
    ("vit_base_patch32_224", 16, "float32", "adamw"),
    ("deit3_small_patch16_224", 16, "bfloat16", "adamw"),
    ("vit_pico_patch4_28", 128, "bfloat16", "muon"),
    ("vit_small_patch32_224", 64, "float32", "adamw"),
    ("vit_base_patch16_224", 16, "float32", "adamw"),
)
QUICK = (("vit_mu_patch8_16", 8, "float32", "adamw"), ("vit_nano_patch4_28", 16, "bfloat16", "muon"))


def main() -> None:
    """Foretell and measure what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two tiny rows, nothing written")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(
                predict_cost(*options.child[1:]) if options.child[0] == "foretell" else measure_cost(*options.child[1:])
            )
        )
        return
    with tempfile.TemporaryDirectory() as nowhere:
        folder = Path(nowhere) if options.quick else RESULTS
        results = Results("cost-model", folder)
        for model, batch, number_format, optimizer in QUICK if options.quick else ROWS:
            key = {"model": model, "batch": batch, "number_format": number_format, "optimizer": optimizer}
            row = results.row(key, partial(both, *map(str, key.values())))
            off = " ".join(f"{name} {share - 1:+.0%}" for name, share in shares(row).items())
            print(off, *key.values(), flush=True)
        close = {name: sum(abs(shares(row)[name] - 1) <= CLOSE for row in results.rows) for name in WHATS}
        results.write({"within_a_quarter": close, "of": len(results.rows), "machine": machine()})
        (folder / "cost-model.md").write_text(table(results.rows), encoding="utf-8")
        print(table(results.rows))


WHATS = ("step", "answers", "training_memory", "inference_memory")


def both(*words: str) -> Row:
    """What is foretold and what is taken, each by a process of its own."""
    return {"foretold": child("foretell", *words), "taken": child("take", *words)}


def child(*words: str) -> dict[str, float]:
    """What this script answers in another process."""
    command = [sys.executable, __file__, "--child", *words]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def predict_cost(name: str, batch: str, number_format: str, optimizer: str) -> dict[str, float]:
    """By the code of `vitrail inspect --cost`."""
    from vitrail.services.cost import CostRequest, estimate_cost
    from vitrail.services.open_model import default_image_spec

    config = shape(name)
    said: dict[str, Any] = {"precision": number_format, "optimizer": optimizer}
    request = CostRequest(batch_size=int(batch), **said)
    facts = estimate_cost(config, default_image_spec(config), request)
    return {
        "step": facts["step"],
        "answers": int(batch) / facts["inference_rate"],
        "training_memory": facts["training_memory"],
        "inference_memory": facts["inference_memory"],
    }


def measure_cost(name: str, batch: str, number_format: str, optimizer: str) -> dict[str, float]:
    """By the whole model; memory is what comes on top of the libraries."""
    from making.contestant import resident

    from vitrail import runtime
    from vitrail.bench import measure
    from vitrail.bench.measure import InterleavedTimer
    from vitrail.evaluate.inference import cast_weights
    from vitrail.model.vit import create_model
    from vitrail.services.open_model import default_image_spec
    from vitrail.train.loop import build_train_state
    from vitrail.train.plan import ComputeSettings, Plan, Recipe

    runtime.apply(runtime.choose(runtime.RuntimeSettings()))
    found: dict[str, float] = {}
    small = shape("vit_mu_patch8_16")
    for warm, config in ((True, small), (False, shape(name))):
        spec, count = default_image_spec(config), int(batch)
        compute: dict[str, Any] = {"precision": number_format}
        recipe: dict[str, Any] = {"steps": 1_000_000, "batch_size": count, "optimizer": optimizer, "warmup": 0.0}
        plan = Plan(model=config, image=spec, recipe=Recipe(**recipe), compute=ComputeSettings(**compute))
        before = resident()
        measure.reset_peak_memory("cpu")
        model = create_model(config, 0)
        answers = measure.make_inference_job(cast_weights(model, number_format), spec, count, "cpu", number_format)
        answers()
        found["inference_memory"] = measure.read_peak_memory("cpu") - before
        measure.reset_peak_memory("cpu")
        step = measure.make_training_job(build_train_state(model, plan), plan)
        step()
        step()
        found["training_memory"] = measure.read_peak_memory("cpu") - before
        clock = InterleavedTimer({"answers": answers, "step": step})
        for _ in clock.warm_up():
            pass
        if warm:
            continue
        for _ in clock.time_rounds(5):
            pass
        found |= {what: clock.timing(what).median for what in ("answers", "step")}
    return found


def shape(name: str) -> Any:
    """A size with as many outputs as it has."""
    from vitrail.model.registry import config_from_name

    config = config_from_name(name)
    return config if config.outputs else dataclasses.replace(config, outputs=1000)


def machine() -> dict[str, object]:
    """What the figures depend on."""
    from vitrail.bench.measure import describe_machine

    return describe_machine("cpu")


def shares(row: Row) -> dict[str, float]:
    """What was taken for each that was foretold."""
    return {name: row["taken"][name] / row["foretold"][name] for name in WHATS}


def table(rows: list[Row]) -> str:
    """Foretold beside taken in Markdown."""
    head = ("model", "batch", "format", "optimiser", *(f"{name.replace('_', ' ')} | taken | off" for name in WHATS))
    lines = [f"| {' | '.join(head)} |", "|---|---:|---|---|" + "---:|" * 3 * len(WHATS)]
    for row in rows:
        cells = [row["model"], str(row["batch"]), row["number_format"], row["optimizer"]]
        for name in WHATS:
            predicted, took = row["foretold"][name], row["taken"][name]
            unit = (1e-6, "MB") if "memory" in name else (1e3, "ms")
            cells += [
                f"{predicted * unit[0]:,.0f} {unit[1]}",
                f"{took * unit[0]:,.0f}",
                f"{shares(row)[name] - 1:+.0%}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
