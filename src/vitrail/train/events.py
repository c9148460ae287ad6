"""What a training tells whoever watches: plain values, yielded one after another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..evaluate.measuring import Figures
from .plan import Plan
from .planning.cost import Cost


@dataclass(frozen=True)
class Note:
    """A sentence for a person."""

    text: str


@dataclass(frozen=True)
class Planned:
    """The plan is settled and its reasons known."""

    plan: Plan
    reasons: dict[str, str]
    cost: Cost | None = None
    """What the run is expected to take; None where that was not worth measuring."""


@dataclass(frozen=True)
class Opened:
    """The run folder is there, and nobody else's: everything from here on is kept in it."""

    run: Path


@dataclass(frozen=True)
class Progress:
    """The state after an optimiser step. `left` is the expected number of seconds until the last one of its phase."""

    step: int
    steps: int
    epoch: float
    loss: float
    images_per_second: float
    left: float
    phase: str = ""
    """Empty for the training itself, else what comes before it, such as "pre-training"."""


@dataclass(frozen=True)
class Worked:
    """How far something other than training steps has come; `left` is the expected number of seconds to its end."""

    what: str
    done: int
    total: int
    left: float


@dataclass(frozen=True)
class Evaluated:
    """Figures on (a sample of) the validation pictures in the middle of a run."""

    step: int
    figure: float | None
    """None where the sample cannot show it."""
    loss: float
    name: str = "accuracy"
    """Of the figure: accuracy, AUROC or R2."""


@dataclass(frozen=True)
class Finished:
    """The run is complete; `metrics` are those of the held-out pictures."""

    run: Path
    report: Path
    metrics: Figures
    seconds: float


Event = Note | Planned | Opened | Worked | Progress | Evaluated | Finished
