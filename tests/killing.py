"""Runs that are killed at random until they are done, and what must be equal to an unbroken one afterwards.

`python tests/killing.py 100` kills a hundred times and prints what it found (about ten minutes on two cores).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nursery import Ended, Nursery

CLOCK = ("seconds", "elapsed", "images_per_second")
"""Columns of metrics.jsonl that no two runs have in common."""
SHORT = ("--model", "vit_mu_patch8_16", "--recipe.batch_size", "8", "--compute.threads", "1")
EVERYTHING = (
    "--model",
    "vit_mu_patch4_16",
    "--recipe.batch_size",
    "8",
    "--recipe.repeated_augmentation",
    "2",
    "--recipe.crop_padding",
    "1",
    "--recipe.flip",
    "true",
    "--recipe.flip_vertical",
    "true",
    "--recipe.transpose",
    "true",
    "--recipe.rotate",
    "10",
    "--recipe.scale",
    "0.1",
    "--recipe.translate",
    "0.1",
    "--recipe.crop_scale",
    "0.5",
    "--recipe.auto_augment",
    "rand",
    "--recipe.random_erasing",
    "0.2",
    "--recipe.progressive_size",
    "0.5",
    "--recipe.progressive_until",
    "0.3",
    "--recipe.class_weights",
    "root",
    "--recipe.mixup",
    "0.3",
    "--recipe.cutmix",
    "0.5",
    "--recipe.label_smoothing",
    "0.1",
    "--recipe.ema_decay",
    "0.9",
    "--recipe.warmup",
    "0.3",
    "--recipe.patch_keep_rate",
    "0.5",
    "--recipe.patch_keep_until",
    "0.6",
    "--recipe.grad_clip_norm",
    "1",
    "--recipe.skip_spikes",
    "true",
    "--recipe.grad_accum_steps",
    "2",
    "--model.drop_path",
    "0.1",
    "--model.dropout",
    "0.1",
    "--model.attention_dropout",
    "0.1",
    "--compute.precision",
    "bfloat16",
    "--compute.threads",
    "1",
)
"""All that draws random numbers or remembers something, at once."""


def draw(path: Path) -> Path:
    """Sixty noisy pictures of three classes, in a file."""
    labels = np.arange(60) % 3
    noise = np.random.default_rng(0).integers(0, 120, (60, 16, 16, 3))
    np.savez(path, images=(noise + 40 * labels[:, None, None, None]).astype(np.uint8), labels=labels)
    return path


def until_done(nursery: Nursery, run: Path, begin: list[object], kills: int, longest: float, seed: int) -> list[Ended]:
    """Begin a run, kill it after a random time, resume it, and so on for so many kills; then let it end."""
    luck, ends = random.Random(seed), []
    for _ in range(kills):
        if (run / "report.html").is_file():
            break
        child = nursery.start(*(["train", "--resume", run] if (run / "plan.toml").is_file() else begin))
        time.sleep(luck.uniform(0, longest))
        os.kill(child.pid, signal.SIGKILL)
        ends.append(nursery.wait(child))
    ends.append(nursery.run(*(["train", "--resume", run] if (run / "plan.toml").is_file() else begin)))
    return ends


def left_behind(run: Path) -> dict[str, object]:
    """What of a finished run must not depend on how often it was killed."""
    checkpoint = max(run.glob("checkpoints/step-*"))
    files = [*checkpoint.glob("*.safetensors"), run / "model" / "model.safetensors", *run.glob("predictions/*.csv")]
    files += [*run.glob("metrics-*.json"), run / "splits.csv"]
    found: dict[str, object] = {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = [{name: row[name] for name in row if name not in CLOCK} for row in rows]
    found["guards"] = json.loads((checkpoint / "state.json").read_text())["guards"]
    return found


def differences(run: Path, unbroken: Path) -> list[str]:
    """Names of what is not equal."""
    ours, theirs = left_behind(run), left_behind(unbroken)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _main(wanted: int) -> int:
    """Kill so many times, over as many runs as that takes, and print a line a run."""
    with tempfile.TemporaryDirectory() as folder, Nursery() as nursery:
        pictures = draw(Path(folder) / "pictures.npz")
        line = ["train", pictures, *EVERYTHING, "--steps", 60, "--recipe.save_every", 7]
        began = time.monotonic()
        unbroken = Path(folder) / "unbroken"
        assert nursery.run(*line, "--out", unbroken).code == 0
        longest = (time.monotonic() - began) / 2  # a resumed run is shorter
        print(f"unbroken: {2 * longest:.1f} s, 60 steps, a checkpoint every 7", flush=True)
        killed = bad = number = 0
        while killed < wanted:
            run = Path(folder) / f"run-{number}"
            ends = until_done(nursery, run, [*line, "--out", run], min(10, wanted - killed), longest, number)
            assert ends[-1].code == 0, f"run {number + 1}, killed {len(ends) - 1} times: {ends[-1]}"
            died = sum(end.code == -signal.SIGKILL for end in ends)
            odd = differences(run, unbroken)
            killed, bad, number = killed + died, bad + bool(odd), number + 1
            print(
                f"run {number}: killed {died} times, {'DIFFERENT: ' + ', '.join(odd) if odd else 'equal'}", flush=True
            )
        print(f"{killed} kills over {number} runs, {bad} runs differ from the unbroken one")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
