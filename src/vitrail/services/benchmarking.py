"""`vitrail bench`: settings, results as plain values, and tables for people."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import config, runtime
from ..bench import attention_table, measure
from ..bench.attention_table import AttentionTiming, TableProposal
from ..bench.measure import SweepRow, SweepRunner, SweepSettings, select_benchmarks, timing_to_json
from ..errors import UsageError
from ..evaluate.device_check import choose_checked_runtime
from ..files.atomic import write_json
from ..formatting import format_bytes, format_count
from ..model.vit import parameter_count
from .open_model import find_model

DEFAULT_BATCH_SIZES = {"cpu": (1, 8, 32), "mps": (1, 8, 64), "cuda": (1, 32, 256)}
"""Default batch sizes by device."""
EXCLUDED_WORK = {
    "inference": "pictures lie prepared on the device; decoding, resizing and copying to it are left out",
    "training": "pictures lie decoded in memory; everything that the training loop does with them is in",
    "loading": "files were read before, so that the disk plays no part; decoded, cut, resized and normalised",
    "predicting": "files were read before; from their bytes to the rows of a CSV, in memory",
    "onnx": "pictures lie decoded in memory; ONNX Runtime answers in float32, from uint8 pictures to decisions",
    "openvino": "pictures lie decoded in memory; OpenVINO answers in float32, from uint8 pictures to decisions",
}
PrecisionChoice = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Options of a benchmark; empty and "auto" are resolved for the machine.

    Raises:
        UsageError: a batch size or a number of rounds below 1.
    """

    batch_sizes: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    device: str = "auto"
    precision: PrecisionChoice = "auto"
    threads: int = 0
    optimizer: Literal["muon", "adamw"] = "muon"
    compile: bool = False
    rounds: int = 5
    min_seconds: float = 0.2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"--rounds must be at least 1. Got {self.rounds}.")
        if self.batch_sizes and min(self.batch_sizes) < 1:
            raise UsageError(f"--batches must be 1 or more. Got {min(self.batch_sizes)}.")


class ModelBenchmark:
    """Benchmarks of a model on this machine; `run` yields progress messages, then `facts` holds the results.

    Raises:
        UsageError: no such model, device or benchmark.
    """

    def __init__(self, model_name: str, request: BenchRequest):
        self.model_name = model_name
        self.kinds = select_benchmarks(request.only)
        self.model_info = find_model(model_name)
        self.runtime = configure_runtime(request)
        kind = self.runtime.device.partition(":")[0]
        self.sweep = SweepSettings(
            kinds=self.kinds,
            batch_sizes=tuple(sorted(set(request.batch_sizes))) or DEFAULT_BATCH_SIZES[kind],
            device=self.runtime.device,
            precision=self.runtime.precision,
            num_workers=self.runtime.num_workers,
            optimizer=request.optimizer,
            compile=request.compile,
            rounds=request.rounds,
            min_seconds=request.min_seconds,
        )
        self.facts: dict[str, Any] = {}
        self._rows: list[SweepRow] = []

    def run(self) -> Iterator[str]:
        """Run the benchmarks, yielding progress messages."""
        with tempfile.TemporaryDirectory() as folder:
            measurement = SweepRunner(self.model_info.model, self.model_info.spec, self.sweep, Path(folder))
            yield from measurement.run()
        self._rows = measurement.rows
        shape, sweep = self.model_info.config, self.sweep
        self.facts = {
            "model": self.model_name,
            "parameters": parameter_count(shape),
            "machine": measure.describe_machine(sweep.device),
            "number_format": sweep.precision,
            "compiled": sweep.compile,
            "optimizer": sweep.optimizer,
            "workers": sweep.num_workers,
            "files": {
                "count": sweep.num_files,
                "height": sweep.image_size[0],
                "width": sweep.image_size[1],
                "kind": "JPEG",
            },
            "warm_up": "three calls of each",
            "limits": {
                "large_product_flops": measurement.matmul_flops_per_second,
                "copied_bytes_per_second": measurement.copy_bytes_per_second,
            },
            "rows": [_row_to_json(row) for row in measurement.rows],
            "excluded": {what: EXCLUDED_WORK[what] for what in self.kinds},
            "left_out": measurement.skip_reasons,
            "architecture": config.write(shape),
        }

    def format_table(self) -> str:
        """The results as a table; after `run`."""
        facts, sweep = self.facts, self.sweep
        machine = facts["machine"]
        cores = f"{machine['cpu']}, {format_count(machine['threads'], 'thread')}"
        where = machine["gpu"] if sweep.device.startswith("cuda") else cores
        large, copied = (facts["limits"][name] for name in ("large_product_flops", "copied_bytes_per_second"))
        compiled = ", compiled" if sweep.compile else ""
        header = ("", "batch", "pictures/s", "spread", "ms/batch", "GFLOP/s", "of limit", "memory")
        lines = [
            f"{self.model_name} in {sweep.precision}{compiled} on {where}",
            f"limits: one large product {_format_giga(large)} GFLOP/s, copies {copied / 1e9:.1f} GB/s read and written",
            "",
            *_align_columns([header, *(_format_row_cells(row) for row in self._rows)]),
            "",
            (
                "spread: slowest less fastest round, as a share of the median. of limit: of the rate of the same "
                "matrix products alone."
            ),
            *(f"left out {reason}" for reason in facts["left_out"]),
        ]
        return "\n".join(lines)


def benchmark_attention(
    request: BenchRequest, token_counts: Sequence[int] = attention_table.TOKEN_COUNTS
) -> tuple[list[AttentionTiming], list[TableProposal]]:
    """Time both attention paths, and propose changes of the table in `model/attention.py`.

    Raises:
        UsageError: a missing device.
    """
    machine = configure_runtime(request)
    precisions = ("float32", "bfloat16") if request.precision == "auto" else (machine.precision,)
    timings = list(
        attention_table.compare_paths(machine.device, precisions, token_counts, request.rounds, request.min_seconds)
    )
    return timings, attention_table.propose_changes(timings, machine.device)


def attention_to_json(
    timings: Sequence[AttentionTiming], proposals: Sequence[TableProposal], request: BenchRequest
) -> dict[str, Any]:
    """Timings and proposals as plain values."""
    rows = [
        {
            "number_format": row.precision, "gradients": row.gradients, "tokens": row.tokens,
            "fused": timing_to_json(row.fused), "open": timing_to_json(row.open), "ratio": row.ratio,
        }
        for row in timings
    ]  # fmt: skip
    changes = [{"key": list(row.key), "now": row.now, "better": row.better} for row in proposals]
    return {"machine": measure.describe_machine(configure_runtime(request).device), "rows": rows, "changes": changes}


def format_attention_results(timings: Sequence[AttentionTiming], proposals: Sequence[TableProposal]) -> str:
    """Timings as a table, and proposals as lines of Python."""
    head = ("format", "gradients", "tokens", "fused ms", "open ms", "fused/open")
    cells = [
        (
            row.precision, "yes" if row.gradients else "no", str(row.tokens),
            f"{row.fused.median * 1e3:.2f}", f"{row.open.median * 1e3:.2f}", f"{row.ratio:.2f}",
        )
        for row in timings
    ]  # fmt: skip
    lines = _align_columns([head, *cells])
    if not proposals:
        return "\n".join([*lines, "", "The table MEASURED in model/attention.py says the same."])
    changes = [f"    {row.key!r}: {row.better},  # now {row.now}" for row in proposals]
    return "\n".join([*lines, "", "Changes for the table MEASURED in model/attention.py:", *changes])


def configure_runtime(request: BenchRequest) -> runtime.Runtime:
    """Resolve the runtime of a request and apply it to torch.

    Raises:
        UsageError: a missing device or unsupported precision.
    """
    settings = runtime.RuntimeSettings(
        device=request.device, precision=request.precision, threads=request.threads, compile=request.compile
    )
    machine = choose_checked_runtime(settings)
    runtime.apply(machine)
    return machine


def save_results(path: Path, facts: Mapping[str, Any]) -> None:
    """Write results as JSON, atomically."""
    write_json(path, dict(facts))


def _row_to_json(row: SweepRow) -> dict[str, Any]:
    return {
        "what": row.kind,
        "batch": row.batch_size,
        "pictures_per_second": row.rate,
        "seconds": timing_to_json(row.timing),
        "pictures": row.num_images,
        "flops": row.flops,
        "limit_flops_per_second": row.limit,
        "utilisation": row.utilisation,
        "memory": row.memory,
    }


def _format_row_cells(row: SweepRow) -> tuple[str, ...]:
    timing = row.timing
    return (
        row.kind,
        str(row.batch_size),
        f"{row.rate:,.1f}",
        f"{timing.spread:.0%}",
        f"{timing.median * 1e3 * row.batch_size / row.num_images:,.1f}",
        _format_giga(row.flops / timing.median) if row.flops else "",
        "" if row.utilisation is None else f"{row.utilisation:.0%}",
        "" if row.memory is None else format_bytes(row.memory),
    )


def _format_giga(rate: float) -> str:
    return f"{rate / 1e9:,.1f}" if rate < 1e11 else f"{rate / 1e9:,.0f}"


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return lines
