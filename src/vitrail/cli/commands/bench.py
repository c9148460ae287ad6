"""`vitrail bench`: how fast a model is on this machine, how much memory it takes, and how near the limit that is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...services.progress import track_messages
from ..arguments import Command, print_json


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Measure a model here: answers, training steps, reading files, and from files to answers, at several batches.

    Everything is warmed up, then timed in turn, round by round; beside it stands what the machine can do at most, by
    the model's own matrix products alone. Nothing else should be running.

      vitrail bench vit_small_patch16_224
      vitrail bench RUN --only inference --batches 1,64 --number-format float32 --to bench.json
      vitrail bench RUN --only inference,onnx,openvino
      vitrail bench --attention
    """

    POSITIONAL = ("model",)

    model: str = "vit_tiny_patch16_224"
    """A run folder, a bundle, a weights file or folder, hf:OWNER/NAME, or a named size."""
    only: tuple[str, ...] = ()
    """Measure only some of inference, training, loading and predicting; or also onnx and openvino, the model as a file
    that these engines answer in float32 on the CPU."""
    batches: tuple[int, ...] = ()
    """Pictures at a time; by default 1, 8 and 32 on a CPU, 1, 32 and 256 on a GPU."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    number_format: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Format of the large products."""
    threads: int = 0
    """Threads of the CPU's products; 0 takes every core that this process may use."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """Of the training steps."""
    compile: bool = False
    """Measure what torch.compile makes of the model and of the training step."""
    rounds: int = 5
    """How often everything is timed."""
    attention: bool = False
    """Measure both paths of attention instead, and say which rows of their table this machine would change."""
    to: Path | None = None
    """Keep the result in this JSON file, too."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        """Run the benchmark and print its results."""
        from ...services import benchmarking

        request = benchmarking.BenchRequest(
            batch_sizes=self.batches,
            only=self.only,
            device=self.device,
            precision=self.number_format,
            threads=self.threads,
            optimizer=self.optimizer,
            compile=self.compile,
            rounds=self.rounds,
        )
        if self.attention:
            rows, proposed = benchmarking.benchmark_attention(request)
            facts = benchmarking.attention_to_json(rows, proposed, request)
            text = benchmarking.format_attention_results(rows, proposed)
        else:
            benchmark = benchmarking.ModelBenchmark(self.model, request)
            for _ in track_messages(benchmark.run()):
                pass
            facts, text = benchmark.facts, benchmark.format_table()
        facts = {"command": " ".join(["vitrail", *sys.argv[1:]]), **facts}
        if self.to is not None:
            benchmarking.save_results(self.to, facts)
        if self.json:
            print_json(facts)
        else:
            print(text)
        return 0
