"""The plan: every setting of a run, resolved, as one value that `plan.toml` holds and `--plan` reads back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..data.settings import DataSettings
from ..evaluate.settings import AnswerSettings
from ..model.config import ViTConfig
from ..spec import ImageSpec
from .pretrain.settings import Pretrain
from .recipe import Recipe
from .teacher.settings import Teacher
from .tracking.settings import TrackSettings
from .transfer.settings import StartSettings


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """What the machine computes with, as decided when the plan was made."""

    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps."""
    number_format: Literal["float32", "bfloat16", "float16"] = "float32"
    """Format of the large products; weights and losses stay in float32. float16 is for GPUs without bfloat16."""
    threads: int = 0
    """Threads of the CPU's products; 0 takes OMP_NUM_THREADS or every core. Equal bits need an equal count."""
    workers: int = 2
    """Threads that decode pictures while the model trains; 0 decodes in the main thread. Batches stay the same."""
    compile: bool = False
    """Compile the training step with torch.compile."""
    engine: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes train one model: ddp copies it into each, fsdp splits it; auto splits what does not fit."""
    patience: float = 1800.0
    """Seconds that processes which train together wait for one that does not answer."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run depends on. The same plan on the same machine gives the same weights, bit for bit."""

    model_name: str = ""
    """Name that the model was built from; the shape itself stands under [model]."""
    seed: int = 0
    """Start of every random choice: splits, initial values, order, augmentation, dropout."""
    minutes: float = 0.0
    """Training time that the number of steps was made to fit; 0 if steps or epochs were given."""
    data: DataSettings = field(default_factory=DataSettings)
    image: ImageSpec = field(default_factory=ImageSpec)
    model: ViTConfig = field(default_factory=ViTConfig)
    start: StartSettings = field(default_factory=StartSettings)
    pretrain: Pretrain = field(default_factory=Pretrain)
    teacher: Teacher = field(default_factory=Teacher)
    recipe: Recipe = field(default_factory=Recipe)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    track: TrackSettings = field(default_factory=TrackSettings)
