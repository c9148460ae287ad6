"""Golden outputs: record what the software does, and compare it with what was recorded before a refactoring.

    python tests/golden.py --write                      # record everything in tests/golden.json
    python tests/golden.py                              # compare; prints every difference and exits 1 if there is one
    python tests/golden.py --only plans,weights         # some groups: plans audits weights predictions reports checks
    python tests/golden.py --renamed renamed.tsv        # after fields were renamed, see below
    python tests/golden.py --without fashion            # where Debian's dataset-fashion-mnist is not installed

The script reaches the software only through the command line, the public names of `import vitrail`, and the files that
both write. Whatever it must spell out and a refactoring may rename stands in the tables at the top of this file.

`--renamed FILE` applies renames to the stored outputs before they are compared. FILE is tab-separated, one rename a
line: old, new, and optionally a pattern of paths (as in fnmatch, `plans/*` by default) to which it applies.
    recipe.batch    recipe.batch_size                       a field: as a key, and wherever a text mentions it
    teacher         distill                                 a section, or a key
    classes         classification      plans/*/data.task*  a value: the whole string
    ~margin         asl_margin          *                   after a tilde: this word inside any text
Differences are printed with the paths that such patterns match.

The hashes of weights depend on the processor and on the versions of torch and others, which are recorded as well and
named where they differ. Write the golden file anew on such a machine, at the commit before the refactoring.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fnmatch
import hashlib
import html
import http.client
import io
import json
import os
import platform
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "tests" / "golden.json"
FASHION = Path("/usr/share/datasets/fashion-mnist")

# Names of the software. A renamed setting, task or file is one changed line here.
MODEL = "vit_mu_patch8_16"
BATCH = "recipe.batch_size"
EVALUATE_EVERY = "recipe.evaluate_every"
THREADS = "compute.threads"
PRECISION = "compute.precision"
WORKERS = "compute.num_workers"
VAL_FRACTION = "data.val_fraction"
TEACHER = "distill.teacher"
START_METHOD = "finetune.method"
TASKS = {"classification": "classification", "multilabel": "multilabel", "regression": "regression"}
METHODS = ("relevance", "legrad", "grad-cam", "integrated", "occlusion", "lens", "attention", "rollout", "similarity")
STEP_25 = re.compile(r"\bstep 25\b")
"""What a training prints on standard error after its 25th step, when it has been evaluated."""

# What is masked, and why: (pattern, replacement). Everything else is compared as it was written.
TEXT_MASKS = (
    # Dates and times: of this run.
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "<date>"),
    # What a run takes, predicted and measured: seconds, bytes and images a second of this machine.
    (r"(Expected on this machine:) .*", r"\1 <measured>"),
    (r"after [^,.]*? of training", "after <time> of training"),
    (r"\b\d[\d,.]* (images|pictures)( a second|/s)", "<rate> images/s"),
    (r"\b\d[\d.e+]* times as fast", "<rate> times as fast"),
    (r"At most [\d,.]+ m?s: (.*), on [^.|]*\.", r"At most <time>: \1, on <processor>."),
    # Cores that this process may use, and the cores' own features: of this machine.
    (r"this process may use \d+ cores?", "this process may use <cores>"),
    # Versions and hardware, as reports and bundles state them.
    (r"\bvitrail: [\d.]+, torch: .*", "<versions>"),
    (r"\bLinux-[\w.+-]+", "<platform>"),
    # Temporary folders, whose names are random.
    (r"/\S*?vitrail-golden-\w+", "<folder>"),
)
MASKED_KEYS = {
    # Seconds and memory, measured.
    "seconds", "elapsed", "took", "memory", "actual", "predicted", "images_per_second", "speedup",
    # Versions and hardware.
    "versions", "vitrail", "torch", "platform", "cpu", "python",
}  # fmt: skip
"""Keys of JSON outputs whose values are measured or describe this machine; also all that end in _seconds."""
MASKED_ROWS_OF_REPORTS = {"Training time", "Pace", "python", "platform", "cpu", "cpu capability", "versions"}
"""Rows of the report's tables whose cell is measured or describes this machine."""
MASKED_FIELDS_BY_MINUTES = ("recipe.steps",)
"""In the one plan with a budget of minutes: measured throughput decides these. Numbers in its reasons are masked."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "200", "NO_COLOR": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "agg",
    "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
JSON = Any
"""Nested dictionaries, lists, texts and numbers."""


# --------------------------------------------------------------------------------------------------------------------
# The command of this script
# --------------------------------------------------------------------------------------------------------------------


def main() -> int:
    """Record the groups in two processes of one thread each, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tests/golden.json instead of comparing with it")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, joined by commas")
    parser.add_argument("--without", default="", help="fashion: leave out the plan of Fashion-MNIST")
    parser.add_argument("--renamed", type=Path, help="tab-separated renames, applied to the stored outputs")
    parser.add_argument("--stored", type=Path, default=STORED, help="the golden file")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each, 1 or 2")
    parser.add_argument("--record-into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = [name for name in given.only.split(",") if name]
    if unknown := sorted(set(chosen) - set(GROUPS)):
        parser.error(f"there is no group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}")
    if given.without not in ("", "fashion"):
        parser.error("--without can only be fashion")
    fashion = given.without != "fashion"
    if given.record_into:
        record_groups(chosen, fashion, given.record_into)
        return 0
    if given.write and not fashion:
        parser.error("--write records everything, so it takes no --without")
    if "plans" in chosen and fashion and not FASHION.is_dir():
        parser.error(f"{FASHION} is missing: apt-get install dataset-fashion-mnist, or give --without fashion")
    if not given.write and not given.stored.exists():
        parser.error(f"{given.stored} is missing; record it with --write")
    recorded, seconds = record_in_processes(chosen, given.without, given.jobs)
    print(", ".join(f"{name} {took:.0f} s" for name, took in seconds.items()), file=sys.stderr)
    stored = json.loads(given.stored.read_text(encoding="utf-8")) if given.stored.exists() else {}
    stored["plans"] = expand_plans(stored.get("plans", {}))
    if given.write:
        order = ["environment", *GROUPS]
        merged = {**stored, **recorded}
        merged["plans"] = shorten_plans(merged["plans"])
        given.stored.write_text(
            format_json({name: merged[name] for name in order if name in merged}) + "\n", encoding="utf-8"
        )
        print(f"Wrote {given.stored}: {given.stored.stat().st_size / 1000:.0f} kB.")
        return 0
    return report_differences(stored, recorded, chosen, given.without, read_renames(given.renamed))


def record_in_processes(chosen: Sequence[str], without: str, jobs: int) -> tuple[dict[str, JSON], dict[str, float]]:
    """What every group gives, and the seconds of each: groups that share trained models share a process."""
    together = [[name for name in chosen if name in share] for share in SHARES]
    shares = [names for names in together if names] if jobs > 1 else [list(chosen)]
    with tempfile.TemporaryDirectory(prefix="vitrail-golden-") as folder:
        running = []
        for number, names in enumerate(shares):
            work = Path(folder) / f"work-{number}"
            (work / "none").mkdir(parents=True)
            own = {"TMPDIR": str(work), "HF_HOME": str(work / "none"), "VITRAIL_WEIGHTS": str(work / "none")}
            environment = {name: value for name, value in os.environ.items() if not name.startswith("VITRAIL_")}
            path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
            environment |= ENVIRONMENT | own | {"PYTHONPATH": path}
            place = Path(folder) / f"{number}.json"
            words = [str(Path(__file__).resolve()), "--only", ",".join(names), "--without", without]
            words += ["--record-into", str(place)]
            running.append((subprocess.Popen([sys.executable, *words], cwd=work, env=environment), place))
        codes = [process.wait() for process, _ in running]
        if any(codes):
            raise SystemExit("golden.py: recording failed, see above.")
        answers = [json.loads(place.read_text(encoding="utf-8")) for _, place in running]
    recorded: dict[str, JSON] = {}
    seconds: dict[str, float] = {}
    for answer in answers:
        recorded |= answer["recorded"]
        seconds |= answer["seconds"]
    return recorded, seconds


def record_groups(chosen: Sequence[str], fashion: bool, place: Path) -> None:
    """Record these groups in this process and its working directory; write them to `place`."""
    declare_torchvision_operators()
    work = Workshop(Path.cwd())
    recorded: dict[str, JSON] = {"environment": describe_environment()}
    seconds: dict[str, float] = {}
    for name in chosen:
        begun = time.monotonic()
        recorded[name] = record_plans(work, fashion) if name == "plans" else GROUPS[name](work)
        seconds[name] = time.monotonic() - begun
    place.write_text(json.dumps({"recorded": recorded, "seconds": seconds}), encoding="utf-8")


def describe_environment() -> dict[str, str]:
    """What bits depend on beside this repository: the processor and the versions of libraries."""
    import torch

    libraries = ("torch", "numpy", "pillow", "scikit-learn", "scipy", "safetensors", "onnxruntime", "onnx")
    libraries += ("onnxscript", "timm", "transformers", "torchvision", "vit-pytorch")
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return {
        "processor": names[0] if names else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": " ".join(sorted({"avx512_bf16", "amx_bf16"} & set(flags))),
        "python": platform.python_version(),
        **{name: find_version(name) for name in libraries},
    }


def find_version(library: str) -> str:
    """The installed version, or "missing"."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "missing"


# --------------------------------------------------------------------------------------------------------------------
# Comparing
# --------------------------------------------------------------------------------------------------------------------


class Rename(NamedTuple):
    """One line of the file of renames."""

    old: str
    new: str
    where: str

    def apply_to_key(self, key: str) -> str:
        """A field, or the section that it begins with."""
        if key == self.old:
            return self.new
        return self.new + key[len(self.old) :] if key.startswith(self.old + ".") else key

    def apply_to_text(self, text: str) -> str:
        """The whole text, or a dotted name (after a tilde any word) inside it."""
        if text == self.old:
            return self.new
        word = self.old.removeprefix("~")
        inside = self.old.startswith("~") or "." in self.old
        return re.sub(rf"(?<![\w.]){re.escape(word)}(?![\w])", lambda _: self.new, text) if inside else text


def read_renames(file: Path | None) -> list[Rename]:
    """The renames of a tab-separated file; empty lines and lines that begin with # are left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file else []:
        if line.strip() and not line.startswith("#"):
            old, new, *where = line.split("\t")
            found.append(Rename(old.strip(), new.strip(), where[0].strip() if where else "plans/*"))
    return found


def apply_renames(value: JSON, renames: Sequence[Rename], path: str) -> JSON:
    """The stored value as it must look after the renames."""
    if isinstance(value, dict):
        renamed = {}
        for key, inner in value.items():
            inner_path, new_key = f"{path}/{key}", key
            for rename in renames:
                if fnmatch.fnmatch(inner_path, rename.where):
                    new_key = rename.apply_to_key(new_key)
            renamed[new_key] = apply_renames(inner, renames, inner_path)
        return renamed
    if isinstance(value, list):
        return [apply_renames(inner, renames, f"{path}/{i}") for i, inner in enumerate(value)]
    if isinstance(value, str):
        for rename in renames:
            if fnmatch.fnmatch(path, rename.where):
                value = rename.apply_to_text(value)
    return value


def report_differences(
    stored: dict[str, JSON], recorded: dict[str, JSON], chosen: Sequence[str], without: str, renames: Sequence[Rename]
) -> int:
    """Print every difference with its path; the exit code."""
    for name, value in recorded["environment"].items():
        if (before := stored.get("environment", {}).get(name)) != value:
            print(f"Note: {name} was {before} when the golden file was written, and is {value} here.", file=sys.stderr)
    count = 0
    for name in chosen:
        expected = apply_renames(stored.get(name), renames, name)
        if name == "plans" and without:
            expected.pop("fashion-mnist", None)
        for path, before, after in find_differences(expected, recorded[name], name):
            print(f"{path}\n    - {shorten(before)}\n    + {shorten(after)}")
            count += 1
    print(f"{count} differences in {', '.join(chosen)}." if count else f"Equal: {', '.join(chosen)}.")
    return 1 if count else 0


def find_differences(before: JSON, after: JSON, path: str) -> Iterator[tuple[str, str, str]]:
    """Every place where two values differ: its path and both values as JSON."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from find_differences(before.get(key, ABSENT), after.get(key, ABSENT), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from find_differences(one, other, f"{path}/{i}")
    elif isinstance(before, list) and isinstance(after, list):
        yield from find_moved_lines(before, after, path)
    elif type(before) is not type(after) or before != after:
        yield path, show(before), show(after)


def find_moved_lines(before: list[JSON], after: list[JSON], path: str) -> Iterator[tuple[str, str, str]]:
    """Of two lists of different lengths, the entries that only one of them has, in place."""
    import difflib

    ours, theirs = [show(value) for value in before], [show(value) for value in after]
    for word, i, j, k, m in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if word != "equal":
            yield f"{path}/{i}", " | ".join(ours[i:j]) or ABSENT.text, " | ".join(theirs[k:m]) or ABSENT.text


class Absent(NamedTuple):
    """Stands for a value that one side does not have."""

    text: str = "(absent)"


ABSENT = Absent()


def show(value: JSON) -> str:
    """A value on one line."""
    return value.text if isinstance(value, Absent) else json.dumps(value, ensure_ascii=False)


def shorten(text: str) -> str:
    """A text without its end, where it is long."""
    return text if len(text) <= 400 else text[:400] + " ..."


def format_json(value: JSON, indent: int = 0) -> str:
    """JSON in which what fits on a line stands on one, so that a change of the file can be read."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + indent <= 120 or not value or not isinstance(value, dict | list):
        return short
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [
            f"{json.dumps(key, ensure_ascii=False)}: {format_json(each, indent + 1)}" for key, each in value.items()
        ]
    else:
        rows = [format_json(each, indent + 1) for each in value]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return opening + "\n" + ",\n".join(inner + row for row in rows) + "\n" + " " * indent + closing


# --------------------------------------------------------------------------------------------------------------------
# Running commands and making outputs comparable
# --------------------------------------------------------------------------------------------------------------------


class Output(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> JSON:
        """Standard output, read as JSON."""
        return json.loads(self.out)


class CapturingStream(io.TextIOWrapper):
    """Keeps what is written to it, and presses Ctrl-C once when a text appears: at the same step in every run."""

    def __init__(self, trigger: re.Pattern[str] | None = None):
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", write_through=True)
        self.trigger = trigger

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.trigger is not None and self.trigger.search(self.read_back()):
            self.trigger = None
            os.kill(os.getpid(), signal.SIGINT)
        return written

    def read_back(self) -> str:
        """Everything that was written."""
        self.flush()
        return self.kept.getvalue().decode("utf-8")


def run_command(*words: object, expect: Sequence[int] = (0,), interrupt_at: re.Pattern[str] | None = None) -> Output:
    """`python -m vitrail WORDS` inside this process, which imports torch only once."""
    out, err = CapturingStream(), CapturingStream(interrupt_at)
    argv, handler = sys.argv, signal.getsignal(signal.SIGINT)
    sys.argv = ["vitrail", *map(str, words)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module("vitrail", run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
        signal.signal(signal.SIGINT, handler)
    if code not in expect:
        raise SystemExit(f"golden.py: `vitrail {' '.join(map(str, words))}` ended with {code}:\n{err.read_back()}")
    return Output(code, out.read_back(), err.read_back())


def mask_text(text: str) -> str:
    """A text without what is measured or describes this machine."""
    for pattern, replacement in TEXT_MASKS:
        text = re.sub(pattern, replacement, text)
    return text


def round_text(text: str) -> str:
    """Fractions inside a text with at most six decimals."""
    pattern = r"(?<![\w.-])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])"
    return re.sub(pattern, lambda found: repr(round(float(found[0]), 6) + 0.0), text)


def clean(value: JSON) -> JSON:
    """JSON with six decimals, texts and measured keys masked."""
    if isinstance(value, dict):
        return {
            key: "<masked>" if key in MASKED_KEYS or key.endswith("_seconds") else clean(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) + 0.0  # which makes -0.0 a plain zero
    return mask_text(value) if isinstance(value, str) else value


def clean_lines(text: str) -> list[str]:
    """The lines of a text, masked and with six decimals."""
    return [round_text(mask_text(line)) for line in text.splitlines()]


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_weights(path: Path) -> str:
    """SHA-256 of a weights file with no more metadata than its format."""
    from safetensors import torch as safetensors

    return hashlib.sha256(safetensors.save(safetensors.load_file(path), {"format": "pt"})).hexdigest()


def flags(settings: Mapping[str, object]) -> list[str]:
    """Settings of a plan as flags of the command line."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


# --------------------------------------------------------------------------------------------------------------------
# Images, checkpoints and trainings that the groups share
# --------------------------------------------------------------------------------------------------------------------

SAME_BITS = {THREADS: 1, PRECISION: "float32", WORKERS: 1}
TINY = {**SAME_BITS, BATCH: 32, EVALUATE_EVERY: 25}
"""Float32 with one thread, so that the bits of weights are the same in every run."""


class Workshop:
    """A working directory with the inputs and the trainings that several groups use, each made when first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.trained: dict[str, Path] = {}

    def train(self, task: str) -> Path:
        """The folder of a finished run of 50 steps for one of TASKS, as a path relative to the working directory."""
        if task not in self.trained:
            run = Path(f"run-{task}")
            run_command("train", *self.source(task), *self.fifty_steps, "--out", run)
            self.trained[task] = run
        return self.trained[task]

    @property
    def fifty_steps(self) -> list[str]:
        """Flags of a training of 50 steps of the smallest model."""
        return ["--model", MODEL, "--steps", "50", "--device", "cpu", *flags(TINY)]

    def source(self, task: str) -> list[str]:
        """Digits with one class, several labels, or a number each."""
        if task == "classification":
            return ["digits"]
        manifest = self.digits_with_labels if task == "multilabel" else self.digits_with_numbers
        return [str(manifest), "--task", TASKS[task]]

    @cached_property
    def digits_with_labels(self) -> Path:
        """300 digits, and for each whether it is odd, large (above four), and drawn with a loop; some cells empty."""
        rows = [
            [path, int(digit % 2), "" if i % 9 == 4 else int(digit > 4), int(digit in (0, 6, 8, 9))]
            for i, (path, digit) in enumerate(self.draw_digits(300))
        ]
        return write_table(Path("labels.csv"), ["path", "odd", "large", "loop"], rows)

    @cached_property
    def digits_with_numbers(self) -> Path:
        """300 digits, and for each its value with an offset; some cells empty."""
        rows = [
            [path, "" if i % 11 == 5 else f"{20 + 1.5 * digit:.2f}"]
            for i, (path, digit) in enumerate(self.draw_digits(300))
        ]
        return write_table(Path("numbers.csv"), ["path", "power"], rows)

    def draw_digits(self, count: int) -> list[tuple[str, int]]:
        """Digits of scikit-learn as PNG files: the path of each, and what it shows."""
        from PIL import Image
        from sklearn.datasets import load_digits

        data = load_digits()
        Path("digits").mkdir(exist_ok=True)
        drawn = []
        for i in range(count):
            path = f"digits/{i:03d}.png"
            if not Path(path).exists():
                Image.fromarray((data.images[i] * 15.9375).astype("uint8")).save(path)
            drawn.append((path, int(data.target[i])))
        return drawn

    @cached_property
    def drawn_labels(self) -> Path:
        """160 noisy grey images of 16 x 16 with the labels `bars` and `nodule`, some cells empty, in three splits."""
        import numpy as np
        from PIL import Image

        generator = np.random.default_rng(0)
        present, empty = generator.random((160, 2)) < (0.5, 0.1), generator.random((160, 2)) < 0.15
        y, x = np.mgrid[:16, :16]
        Path("drawn").mkdir()
        rows = []
        for i in range(160):
            grey = generator.normal(90, 12, (16, 16)) + 50 * present[i, 0] * (x // 2 % 2)
            top, left = generator.integers(3, 13, 2)
            grey += 110 * present[i, 1] * ((y - top) ** 2 + (x - left) ** 2 < 8)
            Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(f"drawn/{i:03d}.png")
            cells = ["" if empty[i, k] else int(present[i, k]) for k in range(2)]
            rows.append([f"drawn/{i:03d}.png", *cells, f"p{i // 4}"])
        return write_table(Path("drawn.csv"), ["path", "bars", "nodule", "patient"], rows)

    @cached_property
    def checkpoint(self) -> Path:
        """A folder of timm with a ViT of random weights that reads colour images of 16 x 16."""
        return self.checkpoints["timm"][0]

    @cached_property
    def checkpoints(self) -> dict[str, tuple[Path, list[str]]]:
        """Models of other libraries with random weights: the file or folder, and flags for what it cannot say."""
        return write_checkpoints(Path("checkpoints"))

    @cached_property
    def images(self) -> list[str]:
        """Eight files to predict: digits in grey, colour, with alpha, of another size, as JPEG, 16-bit and .npy."""
        import numpy as np
        from PIL import Image
        from sklearn.datasets import load_digits

        Path("images").mkdir()
        values = load_digits().images[-8:]
        grey = [Image.fromarray((value * 15.9375).astype("uint8")) for value in values]
        for i in range(3):
            grey[i].save(f"images/{i}.png")
        Image.merge("RGB", [grey[3], grey[4], grey[5]]).save("images/3.png")
        grey[4].resize((24, 20), Image.Resampling.NEAREST).convert("RGB").save("images/4.png")
        Image.merge("LA", [grey[5], grey[5].point(lambda value: 255 - value // 2)]).save("images/5.png")
        grey[6].resize((32, 32), Image.Resampling.NEAREST).save("images/6.jpg", quality=90)
        np.save("images/7.npy", np.asarray(grey[7]))
        return sorted(str(path) for path in Path("images").iterdir())

    @cached_property
    def faulty(self) -> Path:
        """A folder of two classes in two splits with planted faults."""
        return plant_faults(Path("faulty"))


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def plant_faults(folder: Path) -> Path:
    """Copies inside and across splits, two labels for one image, a broken file, a text file, and a tag in a corner."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(3)
    for split, count in (("train", 30), ("test", 10)):
        for kind in ("disc", "stripes"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 90, (20, 24))
                pixels += (np.indices((20, 24))[1] // 3 % 2 * 100) if kind == "stripes" else 60
                pixels[:3, :3] = 255 if kind == "disc" else pixels[:3, :3]  # the shortcut
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / kind / f"{i:02d}.png")
    copies = (("train/disc/00", "train/disc/copy"), ("train/disc/01", "test/disc/leak"))
    for old, new in (*copies, ("train/stripes/02", "train/disc/contradiction")):
        shutil.copy(folder / f"{old}.png", folder / f"{new}.png")
    Image.open(folder / "train/stripes/03.png").resize((2, 2)).save(folder / "train/stripes/small.png")
    Image.new("L", (24, 20), 77).save(folder / "train/stripes/flat.png")
    (folder / "train/disc/broken.png").write_bytes((folder / "train/disc/04.png").read_bytes()[:60])
    (folder / "train/disc/notes.png").write_text("not an image")
    return folder


# --------------------------------------------------------------------------------------------------------------------
# Group: plans
# --------------------------------------------------------------------------------------------------------------------


def record_plans(work: Workshop, fashion: bool = True) -> JSON:
    """Every field of plans with its reason, as `train --dry-run` prints them."""
    fixed = flags(SAME_BITS)
    labels = [work.drawn_labels, "--group", "patient", "--steps", "200", *fixed]
    asked: dict[str, list[object]] = {
        "digits": ["digits", "--steps", "200", f"--{THREADS}", "1"],
        "digits by minutes": ["digits", "--minutes", "300", *fixed],
        "fashion-mnist": ["fashion-mnist", "--steps", "2000", *fixed],
        "manifest of labels": labels,
        "manifest of numbers": [*work.source("regression"), "--epochs", "20", *fixed],
        "pre-trained": ["digits", "--pretrain", "--steps", "400", *fixed],
        "from a checkpoint": [*labels, "--weights", work.checkpoint],
        "from a teacher": ["digits", "--steps", "200", *fixed, f"--{TEACHER}", work.train("classification")],
    }
    if not fashion:
        del asked["fashion-mnist"]
    plans = {}
    for name, words in asked.items():
        plans[name] = parse_plan(run_command("train", *words, "--device", "cpu", "--dry-run", "--full").out)
        if name == "digits by minutes":
            plans[name] = mask_throughput(plans[name])
    return plans


def parse_plan(text: str) -> JSON:
    """The notes before the first field, and each field's value and reason; the value is null where it is not set."""
    values = tomllib.loads(text)
    section, notes, fields = "", [], {}
    for line in text.splitlines():
        if unset := re.fullmatch(r"# ([\w.]+) is not set: (.*)", line):
            fields[unset[1]] = [None, mask_text(unset[2])]
        elif line.startswith("#"):
            notes.append(mask_text(line.removeprefix("# ")))
        elif opened := re.fullmatch(r"\[([\w.]+)\]", line):
            section = opened[1]
        elif stated := re.match(r"(\w+) = (.*)", line):
            value = values[section][stated[1]] if section else values[stated[1]]
            value = mask_text(value) if isinstance(value, str) else value  # an absolute path
            reason = re.search(r"\s# (.*)$", stated[2])
            fields[f"{section}.{stated[1]}".lstrip(".")] = [value, mask_text(reason[1]) if reason else ""]
    return {"notes": notes, "fields": fields}


def shorten_plans(plans: dict[str, JSON]) -> dict[str, JSON]:
    """For the golden file: of every plan after the first only the fields that differ from the first one's."""
    first = next(iter(plans.values()), {"fields": {}})
    short = {}
    for name, plan in plans.items():
        fields = {field: plan["fields"].get(field, ABSENT.text) for field in first["fields"] | plan["fields"]}
        others = {field: value for field, value in fields.items() if value != first["fields"].get(field)}
        short[name] = plan if plan is first else {"notes": plan["notes"], "fields unlike the first plan": others}
    return short


def expand_plans(short: dict[str, JSON]) -> dict[str, JSON]:
    """The plans that `shorten_plans` has shortened."""
    first = next(iter(short.values()), {"fields": {}})
    plans = {}
    for name, plan in short.items():
        fields = first["fields"] | plan.get("fields unlike the first plan", {})
        present = {field: value for field, value in fields.items() if value != ABSENT.text}
        plans[name] = {"notes": plan["notes"], "fields": present}
    return plans


def mask_throughput(plan: JSON) -> JSON:
    """A plan whose number of steps was measured, without numbers in its reasons and notes."""
    hide = partial(re.sub, r"\d[\d,.]*(?: [kMGTP]FLOP)?", "#")
    fields = {
        name: ["<measured>" if name in MASKED_FIELDS_BY_MINUTES else value, hide(reason)]
        for name, (value, reason) in plan["fields"].items()
    }
    return {"notes": [hide(note) for note in plan["notes"]], "fields": fields}


# --------------------------------------------------------------------------------------------------------------------
# Group: weights
# --------------------------------------------------------------------------------------------------------------------


def record_weights(work: Workshop) -> JSON:
    """Hashes of the weights after 50 steps: three tasks, resumed after 25 steps, extended, and from a checkpoint."""
    recorded = {task: describe_run(work.train(task)) for task in TASKS}
    resumed = Path("resumed")
    words = ["train", "digits", *work.fifty_steps, "--out", resumed]
    stopped = run_command(*words, expect=(0, 130), interrupt_at=STEP_25)
    run_command("train", "--resume", resumed)
    recorded["resumed"] = {"exit code when interrupted": stopped.code, **describe_run(resumed)}
    run_command("train", "--resume", resumed, "--extend", "--steps", "10")
    recorded["extended"] = describe_run(resumed)
    for name, settings in {"from a checkpoint": {}, "by adapters": {START_METHOD: "lora"}}.items():
        run = Path(name.replace(" ", "-"))
        words = [work.drawn_labels, "--weights", work.checkpoint, "--steps", "50", *flags({**TINY, **settings})]
        run_command("train", *words, "--device", "cpu", "--out", run)
        recorded[name] = describe_run(run) | {"start": clean(json.loads((run / "start.json").read_text()))}
    pretrained = Path("pretrained")
    run_command("train", "digits", *work.fifty_steps, "--pretrain", "--out", pretrained)
    recorded["pre-trained"] = describe_run(pretrained)
    return recorded


def describe_run(run: Path) -> JSON:
    """Hashes of a run's weights and of its splits, what it noted every 25 steps, and the names of its files."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if all(line[key] % 25 == 0 for key in line if key.endswith("step"))]
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return {
        "weights": hash_weights(run / "model" / "model.safetensors"),
        "splits": hash_file(run / "splits.csv"),
        "metrics": clean(lines),
        "files": [name for name in files if not name.startswith(("checkpoints/", "tensorboard/"))],
    }


# --------------------------------------------------------------------------------------------------------------------
# Group: predictions
# --------------------------------------------------------------------------------------------------------------------


def record_predictions(work: Workshop) -> JSON:
    """What every interface answers for the same images."""
    recorded: dict[str, JSON] = {}
    for task in TASKS:
        recorded[f"command line, {task}"] = predict_by_command(task, work.train(task), work.images)
        recorded[f"Python, {task}"] = predict_in_python(work.train(task), work.images)
        recorded[f"evaluate, {task}"] = clean(run_command("evaluate", work.train(task), "--json").json)
    recorded["estimators"] = predict_by_estimators()
    recorded["server"] = predict_by_server(work.train("classification"), work.images)
    recorded["onnx"] = predict_by_onnx(work.train("classification"), work.images)
    recorded["embed"] = embed_images(work.train("classification"), work.images)
    recorded["explain"] = explain_image(work.train("classification"), work.images[0])
    recorded["evaluate, further"] = evaluate_further(work)
    recorded["inspect"] = inspect_models(work)
    return recorded


def predict_by_command(task: str, run: Path, images: Sequence[str]) -> JSON:
    """CSV with prediction sets, JSON lines of two images, and JSON of one."""
    run_command("predict", run, *images, "--to", "answers.jsonl", "--device", "cpu")
    lines = Path("answers.jsonl").read_text(encoding="utf-8").splitlines()
    Path("answers.jsonl").unlink()
    sets = [] if task == "multilabel" else ["--sets"]
    return {
        "csv": clean_lines(run_command("predict", run, *images, *sets, "--device", "cpu").out),
        "jsonl": [clean(json.loads(line)) for line in lines[2:4]],
        "json": clean(run_command("predict", run, images[5], "--json", "--device", "cpu").json),
    }


def predict_in_python(run: Path, images: Sequence[str]) -> list[str]:
    """`vitrail.open(run).predict` of arrays, encoded bytes and paths, as its own CSV."""
    import numpy as np
    from PIL import Image

    import vitrail

    given = [np.asarray(Image.open(images[0])), Path(images[1]).read_bytes(), Image.open(images[3]), *images[4:6]]
    place = Path("answers.csv")
    vitrail.open(run).predict(given).write(place)
    lines = clean_lines(place.read_text(encoding="utf-8"))
    place.unlink()
    return lines


def predict_by_estimators() -> JSON:
    """The three estimators of scikit-learn after 20 steps on 200 digits."""
    import numpy as np
    from sklearn.datasets import load_digits

    import vitrail

    data = load_digits()
    X, digits = data.images[:200], data.target[:200]
    given: dict[str, Any] = {"model": MODEL, "steps": 20, "device": "cpu", "settings": TINY | {VAL_FRACTION: 0.2}}
    labels = np.stack([digits % 2, digits > 4], 1).astype(float)
    classifier = vitrail.ViTClassifier(**given).fit(X, digits)
    multilabel = vitrail.ViTMultiLabel(**given).fit(X, labels)
    regressor = vitrail.ViTRegressor(**given).fit(X, 20 + 1.5 * digits)
    new = data.images[-6:]
    return {
        "classifier": clean([classifier.predict(new).tolist(), classifier.predict_proba(new).tolist()]),
        "multilabel": clean([multilabel.predict(new).tolist(), multilabel.predict_proba(new).tolist()]),
        "regressor": clean(regressor.predict(new).tolist()),
    }


def predict_by_server(run: Path, images: Sequence[str]) -> JSON:
    """Each path of the server, asked one request after another."""
    import numpy as np

    first, second = Path(images[0]).read_bytes(), Path(images[4]).read_bytes()
    edge = b'--edge\r\nContent-Disposition: form-data; name="picture"; filename="%s"\r\n\r\n%s\r\n'
    form = edge % (b"0.png", first) + edge % (b"bad.png", b"hello") + edge % (b"4.png", second) + b"--edge--\r\n"
    batch = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 1))
    tensor = {"name": "images", "datatype": "UINT8", "shape": list(batch.shape), "data": batch.ravel().tolist()}
    infer = json.dumps({"id": "golden", "inputs": [tensor]}).encode()
    multipart = {"Content-Type": "multipart/form-data; boundary=edge"}
    with start_server(run) as ask:
        recorded = {
            "POST /predict": ask("/predict", first, {"X-Filename": "0.png"}),
            "POST /predict, a form": ask("/predict", form, multipart),
            "POST /predict, no image": ask("/predict", b"hello"),
            "POST /explain": ask("/explain?method=occlusion&target=3", first),
            "POST /embed": ask("/embed", first),
            "GET /about": ask("/about"),
            "GET /v2": ask("/v2"),
            "GET /v2/health/ready": ask("/v2/health/ready"),
            "GET /v2/models/golden": ask("/v2/models/golden"),
            "POST /v2/models/golden/infer": ask("/v2/models/golden/infer", infer),
            "GET /nowhere": ask("/nowhere"),
            "paths": sorted(ask("/openapi.json")[1]["paths"]),
        }
        metrics = ask("/metrics")[1]
    recorded["GET /metrics"] = sorted(set(re.findall(r"^# TYPE (.*)$", metrics, re.M)))
    recorded["POST /explain"][1].pop("picture", None)  # the image itself, as base64
    return recorded


@contextlib.contextmanager
def start_server(run: Path) -> Iterator[Callable[..., JSON]]:
    """`vitrail serve` in a process of its own; gives a function that asks a path: [status, JSON or text]."""
    words = ["serve", run, "--port", 0, "--json", "--name", "golden", "--threads", 1, "--workers", 1, "--device", "cpu"]
    command = [sys.executable, "-m", "vitrail", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = 0
            for line in server.stdout:  # lines of JSON: where it listens, then that it is ready
                found = re.search(r"http://[\w.]+:(\d+)", line)
                port = int(found[1]) if found else port
                if port and "ready" in line:
                    break
            yield partial(ask_server, port)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def ask_server(port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> JSON:
    """GET, or POST with a body: the status, and JSON where it is JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
    response = connection.getresponse()
    status, text = response.status, response.read().decode()
    connection.close()
    with contextlib.suppress(ValueError):
        return [status, clean(json.loads(text))]
    return [status, text]


def predict_by_onnx(run: Path, images: Sequence[str]) -> JSON:
    """An exported file in ONNX Runtime itself, and through `vitrail predict`."""
    import numpy as np
    import onnxruntime

    run_command("export", run, "--to", "onnx", "--out", "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    batch = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1)).astype(np.uint8)
    answers = session.run(None, {session.get_inputs()[0].name: batch})
    return {
        "inputs": [[each.name, each.type, [str(size) for size in each.shape]] for each in session.get_inputs()],
        "outputs": {name: clean(value.tolist()) for name, value in zip(names, answers, strict=True)},
        "vitrail predict": clean_lines(run_command("predict", "model.onnx", *images).out),
    }


def embed_images(run: Path, images: Sequence[str]) -> JSON:
    """Features of three kinds, and the nearest images."""
    import numpy as np

    recorded: dict[str, JSON] = {}
    for kind, count in {"pooled": 3, "mean": 1, "patches": 1}.items():
        run_command("embed", run, *images[:count], "--features", kind, "--to", f"{kind}.npy", "--device", "cpu")
        features = np.load(f"{kind}.npy")
        recorded[kind] = {"shape": list(features.shape), "values": clean(features.reshape(-1)[:96].tolist())}
    nearest = run_command("embed", run, images[0], "--nearest", "3", "--of", "images", "--device", "cpu")
    recorded["nearest"] = clean_lines(nearest.out)
    return recorded


def explain_image(run: Path, image: str) -> JSON:
    """The maps of every method, as kept beside the drawings."""
    import numpy as np

    recorded: dict[str, JSON] = {}
    for method in METHODS:
        words = ["--patch", "2"] if method == "similarity" else []
        words = [*words, "--to", f"maps-{method}", "--device", "cpu"]
        output = run_command("explain", run, image, "--method", method, *words, expect=(0, 2))
        if output.code:  # such as a map that is zero everywhere
            recorded[method] = clean_lines(output.err)
            continue
        (place,) = Path(f"maps-{method}").rglob("*.npz")
        with np.load(place) as arrays:
            recorded[method] = {
                name: clean([list(arrays[name].shape), *arrays[name].reshape(-1)[:16].tolist()])
                for name in arrays.files
                if arrays[name].dtype.kind in "fiub"
            }
    return recorded


def evaluate_further(work: Workshop) -> JSON:
    """Corruptions, borders, suspects, subgroups, another model beside it, and images of another kind."""
    run, other = work.train("classification"), Path("other")
    run_command("train", "digits", *work.fifty_steps, "--seed", "1", "--out", other)
    plain = run_command("evaluate", run, "--json").json
    with_borders = run_command("evaluate", run, "--shortcuts", "--json").json
    recorded = {
        "against": clean(run_command("evaluate", run, "--against", other, "--json").json),
        "shortcuts": clean({key: value for key, value in with_borders.items() if key not in plain}),
        "corruptions": clean(run_command("evaluate", run, "--corruptions", "films", "--most", "12", "--json").json),
        "unlike": clean(run_command("evaluate", run, work.faulty / "test", "--unlike", "--json").json),
    }
    run_command("evaluate", run, "--suspects", "suspects.csv")
    recorded["suspects"] = clean_lines(Path("suspects.csv").read_text(encoding="utf-8"))[:20]
    return recorded


def inspect_models(work: Workshop) -> JSON:
    """A named size, its cost on a device, a trained run, and the walk of an image through it."""
    cost = ["--cost", "--on", "h100", "--batch", "1024", "--pictures", "1281167", "--epochs", "90"]
    run = work.train("classification")
    return {
        "named": clean(run_command("inspect", "vit_tiny_patch16_224", "--json").json),
        "cost": clean(run_command("inspect", "vit_tiny_patch16_224", *cost, "--json").json),
        "run": clean(run_command("inspect", run, "--json").json),
        "walk": clean_lines(run_command("inspect", run, "--walk", work.images[0]).out),
    }


# --------------------------------------------------------------------------------------------------------------------
# Group: audits
# --------------------------------------------------------------------------------------------------------------------


def record_audits(work: Workshop) -> JSON:
    """`inspect FILE --json` of other libraries' files and of what `convert` writes: layout, numerics, every tensor."""
    recorded = {}
    for name, (place, words) in work.checkpoints.items():
        recorded[name] = audit(place, words)
    for target in ("bundle", "timm", "transformers", "torchvision", "google-npz"):
        source, words = work.checkpoints["torchvision"]
        out = Path(f"converted-{target}{'.npz' if target == 'google-npz' else ''}")
        out = out.with_suffix(".pth") if target == "torchvision" else out
        run_command("convert", source, *words, "--to", target, "--out", out)
        told = words if target in ("torchvision", "google-npz") else []
        recorded[f"converted to {target}"] = audit(out, told)
    return recorded


def audit(place: Path, words: Sequence[str]) -> JSON:
    """What inspect says of a file, each tensor on a line."""
    found = clean(run_command("inspect", place, *words, "--json").json)
    for name, value in found.items():
        if isinstance(value, list) and len(value) > 10 and isinstance(value[0], dict):
            found[name] = [" | ".join(str(cell) for cell in row.values()) for row in value]
    return found


def declare_torchvision_operators() -> None:
    """Let torchvision, timm and transformers import beside a CPU-only torch; tests/conftest.py says why."""
    import torch

    if find_version("torchvision") != "missing" and torch.version.cuda is None:
        with contextlib.suppress(RuntimeError):  # a torchvision built for the CPU declares them itself
            torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def write_checkpoints(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Tiny models of timm, transformers, torchvision and vit-pytorch, saved as their users save them."""
    import timm
    import torch
    import transformers as hf
    import vit_pytorch
    from timm.models import save_for_hf
    from torchvision.models.vision_transformer import VisionTransformer

    size: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
    of_timm = {
        "timm": ("vit_base_patch16_224", {"num_classes": 5}),
        "timm, DINOv2 with registers": ("vit_base_patch14_reg4_dinov2", {"num_classes": 0}),
        "timm, SigLIP": ("vit_base_patch16_siglip_224", {"num_classes": 5, "num_heads": 2}),
        "timm, DINOv3": ("vit_small_patch16_dinov3", {"num_classes": 0}),
    }
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4}
    shape |= {"image_size": 24}
    mlp = {"intermediate_size": 48}
    of_transformers = {
        "transformers, ViT": hf.ViTForImageClassification(hf.ViTConfig(**shape, **mlp, num_labels=5)),
        "transformers, DeiT": hf.DeiTForImageClassification(hf.DeiTConfig(**shape, **mlp, num_labels=5)),
        "transformers, DINOv2": hf.Dinov2ForImageClassification(hf.Dinov2Config(**shape, mlp_ratio=2, num_labels=5)),
        "transformers, CLIP": hf.CLIPVisionModel(hf.CLIPVisionConfig(**shape, **mlp)),
    }
    folder.mkdir()
    hf.utils.logging.disable_progress_bar()
    saved: dict[str, tuple[Path, list[str]]] = {}
    for name, (model, changes) in of_timm.items():
        place = folder / name.replace(", ", "-").replace(" ", "-")
        save_for_hf(randomise(timm.create_model(model, **{**size, **changes})), str(place), safe_serialization=True)
        saved[name] = place, []
    for name, built in of_transformers.items():
        place = folder / name.replace(", ", "-")
        randomise(built).save_pretrained(place)
        saved[name] = place, []
    vision = VisionTransformer(
        image_size=16, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=5
    )
    other = vit_pytorch.ViT(
        image_size=16, patch_size=4, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48, dim_head=8
    )
    for name, built, heads in (("torchvision", vision, "4"), ("vit-pytorch", other, "2")):
        place = folder / f"{name}.pth"
        torch.save(randomise(built).state_dict(), place)
        saved[name] = place, ["--heads", heads]
    return saved


def randomise(model: Any) -> Any:
    """Every parameter random, from a seed of its own; norms and scales about one."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))
            if ("norm" in name and name.endswith("weight")) or "gamma" in name or "lambda1" in name:
                parameter.add_(1.0)
    return model.eval()


# --------------------------------------------------------------------------------------------------------------------
# Groups: reports and checks
# --------------------------------------------------------------------------------------------------------------------


def record_reports(work: Workshop) -> JSON:
    """The text of report.html for three tasks and two readers, and of the model's card."""
    recorded = {task: read_report(work.train(task)) for task in TASKS}
    run_command("report", work.train("multilabel"), "--for", "radiology", "--prevalence", "odd=0.02,large=0.1")
    recorded["for radiology"] = only_new(read_report(work.train("multilabel")), recorded["multilabel"])
    inspection = [
        "--for",
        "inspection",
        "--positive",
        "3",
        "--prevalence",
        "0.01",
        "--parts-per-minute",
        "60",
        "--hours",
        "8",
    ]
    run_command("report", work.train("classification"), *inspection)
    recorded["for inspection"] = only_new(read_report(work.train("classification")), recorded["classification"])
    card = (work.train("classification") / "model" / "README.md").read_text(encoding="utf-8")
    recorded["model card"] = clean_lines(card)
    return recorded


def read_report(run: Path) -> list[str]:
    """The lines of a report without tags, scripts, styles, embedded images and the plan, which the plans group has."""
    text = (run / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.S)
    text = html.unescape(re.sub(r"<[^>]*>", "\n", text))
    lines, previous = [], ""
    for line in (" ".join(line.split()) for line in text.splitlines()):
        if not line or re.match(r"(\w+ = .*\s# |\[\w+\]$|# model\.\w+ is not set)", line):
            continue
        lines.append("<masked>" if previous in MASKED_ROWS_OF_REPORTS else mask_text(line))
        previous = line
    return join_short(lines)


def join_short(lines: Sequence[str]) -> list[str]:
    """Successive short lines, such as cells of a table, joined to lines of up to 110 characters."""
    joined: list[str] = []
    for line in lines:
        if joined and len(joined[-1]) + len(line) < 110 and len(line) < 40:
            joined[-1] += f" | {line}"
        else:
            joined.append(line)
    return joined


def only_new(lines: Sequence[str], known: Sequence[str]) -> list[str]:
    """The lines that another report does not have."""
    return [line for line in lines if line not in set(known)]


def record_checks(work: Workshop) -> JSON:
    """`vitrail check` of a folder with planted faults: what it prints, its JSON, its list; and of a good source."""
    output = run_command("check", work.faulty, "--out", "checked", expect=(0, 3))
    found = run_command("check", work.faulty, "--json", expect=(0, 3))
    again = run_command("check", work.faulty, "--exclude", "checked/exclude.csv", "--json", expect=(0, 3))
    labels = run_command("check", work.digits_with_labels, "--task", TASKS["multilabel"], expect=(0, 3))
    return {
        "exit codes": [output.code, found.code, again.code, labels.code],
        "text": clean_lines(output.out),
        "json": clean(found.json),
        "exclude.csv": clean_lines(Path("checked/exclude.csv").read_text(encoding="utf-8")),
        "after exclusion": clean(again.json),
        "manifest": clean_lines(labels.out),
    }


GROUPS: dict[str, Callable[[Workshop], JSON]] = {
    "plans": record_plans,
    "audits": record_audits,
    "weights": record_weights,
    "predictions": record_predictions,
    "reports": record_reports,
    "checks": record_checks,
}
SHARES = (("plans", "audits", "checks"), ("weights", "predictions", "reports"))
"""Groups that are recorded in one process: those of the second share their trainings."""

if __name__ == "__main__":
    sys.exit(main())
