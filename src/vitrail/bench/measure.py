"""Benchmarks of a model at several batch sizes: inference, training, loading, prediction of files, hardware limits."""

from __future__ import annotations

import dataclasses
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from ..data.loader import InMemoryImageStore, iter_batches, load_images
from ..data.open import open_source
from ..data.preprocess import normalize
from ..data.random_crop import RandomResizedCrop
from ..errors import UsageError
from ..evaluate.inference import DTYPES, InferenceSettings, cast_weights, forward_batch, inference_mode
from ..export.build import FORMAT_EXTENSIONS, write_and_reopen
from ..model import flops
from ..model.config import ViTConfig
from ..model.flops import MatrixProduct
from ..model.vit import ViT
from ..predict.predictor import Predictor, PredictorMember
from ..randomness import derive
from ..runtime import Precision, is_out_of_memory
from ..spec import ImageSpec
from ..train.loop import TrainState, build_train_state, train_steps
from ..train.plan import ComputeSettings, Plan, Recipe
from ..train.planning import cost_estimate
from ..train.run_folder import describe_environment

BenchmarkKind = Literal["inference", "training", "loading", "predicting", "onnx", "openvino"]
BENCHMARK_KINDS: tuple[BenchmarkKind, ...] = get_args(BenchmarkKind)
ENGINE_KINDS = ("onnx", "openvino")
"""Measured only where they are named: the model as an exported file of that format, in float32 on the CPU."""
UNLIMITED_STEPS = 1_000_000
"""Steps of the measured training, more than any benchmark runs."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What to measure, and how."""

    kinds: tuple[BenchmarkKind, ...] = ("inference", "training", "loading", "predicting")
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    device: str = "cpu"
    precision: Precision = "float32"
    num_workers: int = 2
    """Threads that decode images."""
    optimizer: Literal["muon", "adamw"] = "muon"
    compile: bool = False
    rounds: int = 5
    min_seconds: float = 0.2
    """Least seconds of each job in a round."""
    num_files: int = 64
    """Image files to load."""
    image_size: tuple[int, int] = (427, 640)
    """Height and width of these files."""


@dataclass(frozen=True)
class SweepRow:
    """One benchmark at one batch size."""

    kind: BenchmarkKind
    batch_size: int
    timing: Timing
    num_images: int
    """Images of one call."""
    flops: float
    """Operations of the model's matrix products in one call; 0 without a model."""
    limit: float | None
    """Operations a second of the same products alone, timed in the same rounds; None without a model."""
    memory: int | None
    """Peak memory in bytes; None if it cannot be measured."""

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.num_images / self.timing.median

    @property
    def utilisation(self) -> float | None:
        """Rate over that of the matrix products alone (model FLOPs utilisation)."""
        return None if self.limit is None else self.flops / self.timing.median / self.limit


class SweepRunner:
    """Runs the benchmarks of a sweep, interleaved; `skip_reasons` names those that cannot run.

    Args:
        model: with random or trained weights; the training benchmark changes them.
        folder: for image files.
    """

    def __init__(self, model: ViT, spec: ImageSpec, sweep: SweepSettings, folder: Path):
        self.model, self.spec, self.sweep, self.folder = model, spec, sweep, folder
        self.skip_reasons: list[str] = []
        self.rows: list[SweepRow] = []
        self.matmul_flops_per_second, self.copy_bytes_per_second = 0.0, 0.0
        self._memory: dict[str, int | None] = {}

    def run(self) -> Iterator[str]:
        """Run all benchmarks, yielding progress messages; then `rows` and the hardware limits are set."""
        model = self.model.to(self.sweep.device)
        ready: dict[str, tuple[BenchmarkKind, int, BenchmarkJob, int]] = {}
        for what in self.sweep.kinds:
            for batch, job, num_images in self._make_jobs(what, model):
                name = f"{what}, batch {batch}"
                yield f"warming up {name}"
                if not self._try_job(name, job):
                    break
                ready[name] = (what, batch, job, num_images)
        limits = self._make_limits(ready)
        jobs = {name: job for name, (_, _, job, _) in ready.items()}
        clock = InterleavedTimer(
            jobs | {name: limit.job for name, limit in limits.items()}, self.sweep.device, self.sweep.min_seconds
        )
        for name in clock.warm_up():
            yield f"warming up {name}"
        for number, name in clock.time_rounds(self.sweep.rounds):
            yield f"round {number} of {self.sweep.rounds}, {name}"
        rates = {name: limit.amount / clock.timing(name).median for name, limit in limits.items()}
        self.matmul_flops_per_second, self.copy_bytes_per_second = rates["one large product"], rates["copies"]
        self.rows = [
            SweepRow(
                what, batch, clock.timing(name), num_images, self._count_flops(what, num_images),
                rates.get(f"products of {name}"), self._memory[name],
            )
            for name, (what, batch, _, num_images) in ready.items()
        ]  # fmt: skip

    def _make_jobs(self, kind: BenchmarkKind, model: ViT) -> Iterator[tuple[int, BenchmarkJob, int]]:
        """Batch size, job and images of a call, for each batch size."""
        sweep, shape = self.sweep, self.model.config
        if kind in ("training", "predicting", *ENGINE_KINDS) and not shape.outputs:
            self.skip_reasons.append(f"{kind}: the model has no outputs, only features")
        elif kind in ("loading", "predicting") and self.spec.channels not in (1, 3):
            self.skip_reasons.append(f"{kind}: files have 1 or 3 channels, and this model reads {self.spec.channels}")
        elif kind == "inference":
            ready = cast_weights(model, sweep.precision)
            compiled = cast(nn.Module, torch.compile(ready)) if sweep.compile else ready
            for batch in sweep.batch_sizes:
                yield batch, make_inference_job(compiled, self.spec, batch, sweep.device, sweep.precision), batch
        elif kind == "onnx" or kind == "openvino":
            yield from self._make_engine_jobs(kind, model)
        elif kind == "training":
            state = build_train_state(model, self.make_plan(1))
            for batch in sweep.batch_sizes:
                yield batch, make_training_job(state, self.make_plan(batch)), batch
        else:
            yield from self._make_file_jobs(kind, model)

    def _make_engine_jobs(
        self, kind: Literal["onnx", "openvino"], model: ViT
    ) -> Iterator[tuple[int, BenchmarkJob, int]]:
        """Jobs of an exported file, from uint8 images to decisions."""
        if self.sweep.device != "cpu":
            self.skip_reasons.append(f"{kind}: the engine computes on the CPU here, and not on {self.sweep.device}")
            return
        member = make_member(model, self.spec, InferenceSettings())
        path = self.folder / f"model{FORMAT_EXTENSIONS[kind]}"
        try:
            file = write_and_reopen(member, kind, path, resize=False)
        except UsageError as error:  # packages that are missing, by name
            self.skip_reasons.append(f"{kind}: {str(error).removesuffix('.')}")
            return
        for batch in self.sweep.batch_sizes:
            images = make_random_images(self.spec, batch).permute(0, 2, 3, 1).contiguous().numpy()
            yield batch, partial(file.run, images), batch

    def _make_file_jobs(self, kind: BenchmarkKind, model: ViT) -> Iterator[tuple[int, BenchmarkJob, int]]:
        """Jobs on files, with the largest batch size only: loading does not depend on it."""
        sweep, batch = self.sweep, min(max(self.sweep.batch_sizes), self.sweep.num_files)
        paths = sorted(self.folder.glob("*/*.jpg")) or write_jpeg_files(
            self.folder, sweep.num_files, sweep.image_size, self.spec.channels
        )
        if kind == "loading":
            job = make_loading_job(self.folder, self.spec, batch, sweep.num_workers)
            yield batch, job, len(paths) // batch * batch
        else:
            job = make_prediction_job(model, self.spec, paths, batch, sweep.device, sweep.precision)
            yield batch, job, len(paths)

    def _try_job(self, name: str, job: BenchmarkJob) -> bool:
        """Call a job once and record its peak memory; False if it does not fit, which excludes larger batches too."""
        known = reset_peak_memory(self.sweep.device)
        try:
            job()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self.skip_reasons.append(f"{name} and above: the memory is full")
            return False
        self._memory[name] = read_peak_memory(self.sweep.device) if known else None
        return True

    def _make_limits(
        self, ready: Mapping[str, tuple[BenchmarkKind, int, BenchmarkJob, int]]
    ) -> dict[str, HardwareLimit]:
        device, dtype = self.sweep.device, DTYPES[self.sweep.precision]
        limits = {"one large product": make_matmul_limit(dtype, device), "copies": make_copy_limit(device)}
        for name, (what, batch, _, _) in ready.items():
            if what in ("inference", "training"):
                limits[f"products of {name}"] = make_block_limit(
                    self.model.config, batch, dtype, device, training=what == "training"
                )
        return limits

    def _count_flops(self, kind: BenchmarkKind, num_images: int) -> float:
        if kind == "loading":
            return 0.0
        count = flops.training_flops if kind == "training" else flops.forward_flops
        return float(num_images * count(self.model.config))

    def make_plan(self, batch_size: int) -> Plan:
        """A plan with the recipe's defaults and unlimited steps."""
        sweep = self.sweep
        compute = ComputeSettings(
            device=sweep.device, precision=sweep.precision, compile=sweep.compile, num_workers=sweep.num_workers
        )
        recipe = Recipe(steps=UNLIMITED_STEPS, batch_size=batch_size, optimizer=sweep.optimizer, warmup=0.0)
        return Plan(model=self.model.config, image=self.spec, recipe=recipe, compute=compute)


def select_benchmarks(names: Sequence[str]) -> tuple[BenchmarkKind, ...]:
    """The named benchmarks; all but those of engines if none is named.

    Raises:
        UsageError: an unknown name.
    """
    for name in names:
        if name not in BENCHMARK_KINDS:
            raise UsageError(f"What can be measured is {', '.join(BENCHMARK_KINDS)}. Got {name!r}.")
    wanted = names or [what for what in BENCHMARK_KINDS if what not in ENGINE_KINDS]
    return tuple(what for what in BENCHMARK_KINDS if what in wanted)


def timing_to_json(timing: Timing) -> dict[str, float | int]:
    """A timing as plain values."""
    return {**dataclasses.asdict(timing), "spread": round(timing.spread, 4)}


# -- Interleaved timing: all jobs are warmed up, then timed in turn, round by round.

BenchmarkJob = Callable[[], object]
"""One call of a benchmark."""
MIN_SECONDS = 0.2
"""Least seconds of a job in each round, far above the clock's resolution."""
MAX_CALLS = 10_000


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, fastest and slowest round."""

    median: float
    fastest: float
    slowest: float
    rounds: int
    calls: int
    """Calls in each round."""

    @property
    def spread(self) -> float:
        """Slowest minus fastest round, as a fraction of the median."""
        return (self.slowest - self.fastest) / self.median


class InterleavedTimer:
    """Times named jobs in turn (A, B, A, B, ...), so that a change of the machine's load hits all alike.

    Args:
        device: is synchronised before the clock is read.
        min_seconds: least seconds of each job in a round.
    """

    def __init__(self, jobs: Mapping[str, BenchmarkJob], device: str = "cpu", min_seconds: float = MIN_SECONDS):
        self.jobs = dict(jobs)
        self.device = device
        self.min_seconds = min_seconds
        self._calls: dict[str, int] = {}
        self._seconds: dict[str, list[float]] = {name: [] for name in self.jobs}

    def warm_up(self) -> Iterator[str]:
        """Call every job twice, the second time to choose its number of calls; yields each name before it begins."""
        for name, job in self.jobs.items():
            yield name
            job()
            seconds = self._time_calls(job, 1)
            self._calls[name] = min(MAX_CALLS, max(1, math.ceil(self.min_seconds / max(seconds, 1e-9))))

    def time_rounds(self, count: int) -> Iterator[tuple[int, str]]:
        """Time every job in `count` rounds; yields the round from 1 and the name before each."""
        for number in range(1, count + 1):
            for name, job in self.jobs.items():
                yield number, name
                self._seconds[name].append(self._time_calls(job, self._calls[name]) / self._calls[name])

    def run(self, num_rounds: int) -> None:
        """Warm up and time all rounds, without progress."""
        for _ in (*self.warm_up(), *self.time_rounds(num_rounds)):
            pass

    def timing(self, name: str) -> Timing:
        """The timing of a job over all rounds so far."""
        seconds = self._seconds[name]
        return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds), self._calls[name])

    def _time_calls(self, job: BenchmarkJob, calls: int) -> float:
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(calls):
            job()
        synchronize(self.device)
        return time.perf_counter() - began


def synchronize(device: str) -> None:
    """Wait until a device has finished its queued work."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


# -- Jobs, by the same code that the commands run.

NUM_BATCHES = 4
"""Size of the training set in batches."""


def make_inference_job(model: nn.Module, spec: ImageSpec, batch_size: int, device: str, precision: str) -> BenchmarkJob:
    """Forward pass of a batch of preprocessed images on the device."""
    images = make_random_images(spec, batch_size).to(device)
    settings = InferenceSettings(device=device, precision=precision)

    def job() -> Tensor:
        with inference_mode(model):
            return forward_batch(model, images, spec, settings)[0]

    return job


def make_training_job(train_state: TrainState, plan: Plan) -> BenchmarkJob:
    """A step of the training loop: augmentation, forward, loss, backward, guards, optimizer."""
    count = NUM_BATCHES * plan.recipe.batch_size
    targets = np.arange(count) % plan.model.outputs
    steps = train_steps(train_state, InMemoryImageStore(make_random_images(plan.image, count)), targets, plan)
    return lambda: next(steps)


def make_loading_job(folder: Path, spec: ImageSpec, batch_size: int, workers: int) -> BenchmarkJob:
    """One pass over a folder of class folders: decode, random resized crop, flip, normalise, in batches."""
    source = open_source(folder)
    rows = np.arange(len(source))
    images = load_images(source, rows, spec, 0, workers, RandomResizedCrop(0, mirror=True), training=True)

    def job() -> None:
        for _, _, part in islice(iter_batches(images, source.targets, batch_size, 0), len(rows) // batch_size):
            normalize(part.images, spec)

    return job


def make_prediction_job(
    model: ViT, spec: ImageSpec, image_paths: list[Path], batch_size: int, device: str, precision: str
) -> BenchmarkJob:
    """Prediction of files, from their bytes to the rows of a CSV."""
    settings = InferenceSettings(device=device, precision=precision, batch_size=batch_size)
    predictor = Predictor([make_member(model, spec, settings)])
    return lambda: predictor.predict(image_paths).csv_bytes()


def make_member(model: ViT, spec: ImageSpec, settings: InferenceSettings) -> PredictorMember:
    """A classifier with numbered classes."""
    names = tuple(f"class {number}" for number in range(model.config.outputs))
    return PredictorMember(model=model, spec=spec, classes=names, settings=settings)


def make_random_images(spec: ImageSpec, count: int) -> Tensor:
    """Random images [count, C, H, W] of the spec's type."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (count, spec.channels, *spec.size), dtype=torch.uint8, generator=generator)
    return levels if spec.bit_depth == 8 else (levels.int() * 257).to(torch.uint16)


# -- Hardware limits: matrix products of the model's blocks, one large product, memory copies.

BLOCK_PARTS = ("projections", "attention", "mlp")
MATMUL_SIZE = 2048
"""Side of the square matrices of the large product."""
COPY_BYTES = 64 * 2**20
"""Bytes of a copy: more than the caches hold."""


@dataclass(frozen=True)
class HardwareLimit:
    """A job and its amount of work: operations, or bytes read and written."""

    job: BenchmarkJob
    amount: float


def make_block_limit(
    config: ViTConfig, batch_size: int, dtype: torch.dtype, device: str, training: bool
) -> HardwareLimit:
    """The matrix products of one block for a batch, and with `training` those of its backward pass.

    The rate of a whole model over this limit is its model FLOPs utilisation. A model without blocks counts all its
    products.
    """
    every = [product for product in flops.list_matrix_products(config, all_tokens=True) if product.times]
    products = [product for product in every if product.part in BLOCK_PARTS] or every
    pairs = [_make_operands(product, batch_size, dtype, device) for product in products]
    once = sum(product.flops * batch_size // product.times for product in products)

    def job() -> None:
        for x, w in pairs:
            y = x @ w.mT
            if training:
                y @ w  # as for the gradient of x
                y.mT @ x  # as for the gradient of w

    return HardwareLimit(job, once * (flops.TRAINING_FORWARD_MULTIPLE if training else 1))


def make_matmul_limit(dtype: torch.dtype, device: str) -> HardwareLimit:
    """A product of large square matrices."""
    x, w = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device).to(dtype) for _ in range(2))
    return HardwareLimit(lambda: x @ w, 2.0 * MATMUL_SIZE**3)


def make_copy_limit(device: str) -> HardwareLimit:
    """A memory copy, in bytes read plus written."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return HardwareLimit(lambda: target.copy_(source), 2.0 * COPY_BYTES)


def _make_operands(product: MatrixProduct, batch_size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Both operands of one product for a batch; the second as torch stores weights, [columns, inner]."""
    stack = product.stack if product.shared else product.stack * batch_size
    rows = product.rows * (batch_size if product.shared else 1)
    x = torch.randn(stack, rows, product.inner, device=device).to(dtype)
    w = torch.randn(stack, product.columns, product.inner, device=device).to(dtype)
    return (x[0], w[0]) if stack == 1 else (x, w)


# -- JPEG files for the benchmarks, deterministic and as detailed as photographs.

GRAIN_SIZES = (64, 16, 4, 1)
"""Sides in pixels of the squares of random brightness; finer ones have less contrast."""


def write_jpeg_files(folder: Path, count: int, size: tuple[int, int], channels: int = 3) -> list[Path]:
    """Write JPEG files in two class folders.

    Args:
        size: (height, width) in pixels.
        channels: 3, or 1 for grey.
    """
    from PIL import Image

    paths = []
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        values = draw_natural_image(number, *size)
        Image.fromarray(values if channels == 3 else values[..., 0]).save(path, quality=90)
        paths.append(path)
    return paths


def draw_natural_image(index: int, height: int, width: int) -> UInt8[np.ndarray, "H W 3"]:
    """Random squares of several sizes, summed, with the power spectrum of photographs."""
    generator = np.random.default_rng(derive(0, "pictures to read", index))
    values = np.full((height, width, 3), 128.0, np.float32)
    for grain in GRAIN_SIZES:
        shape = (-(-height // grain), -(-width // grain), 3)
        squares = generator.normal(0, 4 + 4 * np.log2(grain), shape).astype(np.float32)
        values += squares.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return np.rint(values.clip(0, 255)).astype(np.uint8)


# -- The machine: environment, commit, peak memory.


def describe_machine(device: str) -> dict[str, object]:
    """The environment as in run folders, with the device and the commit."""
    return {**describe_environment(), "device": device, "commit": read_commit()}


def read_commit() -> str:
    """The Git commit of the code, with "-dirty" for changed files; empty outside a checkout."""
    package = Path(__file__).parents[1]
    if not any((folder / ".git").exists() for folder in package.parents[:2]):
        return ""
    words = ["git", "-C", str(package), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        return ""


def reset_peak_memory(device: str) -> bool:
    """Reset the peak memory; False if that is impossible, as on a CPU without Linux."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def read_peak_memory(device: str) -> int:
    """Peak memory in bytes since `reset_peak_memory`: of torch on a GPU, of the whole process on a CPU."""
    return cost_estimate.measure_peak_memory(device)
