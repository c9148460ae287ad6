"""How a training is shown while it runs: a bar on a terminal, a plain line every five seconds anywhere else."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..errors import InterruptedRun, escape_unprintable
from ..formatting import format_bytes, format_duration
from ..train.distributed.collectives import is_rank0
from ..train.events import (
    Event,
    FinishEvent,
    Note,
    PlanEvent,
    RunFolderEvent,
    StepProgress,
    TaskProgress,
    ValidationEvent,
)
from ..train.plan import CNN_TEACHER, Plan
from .progress import SECONDS_BETWEEN_LINES

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


RESUMABLE_FILES = ("plan.toml", "folds.json")
"""Either of them in a folder says that `--resume` can go on with it."""


@runtime_checkable
class TextStream(Protocol):
    """What a display needs of standard error or a file."""

    def write(self, text: str, /) -> Any:
        """Take some text."""
        ...

    def flush(self) -> Any:
        """Show it now."""
        ...

    def isatty(self) -> bool:
        """Whether a person is watching."""
        ...


class FaultTolerantStream:
    """A stream that takes everything: who watched may have gone, or its disk be full, and a training goes on without.

    The bar draws from a thread of its own, so that errors must end here and not where events are shown.
    """

    def __init__(self, stream: TextStream):
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None)
        """Which signs the bar may use."""

    def write(self, text: str, /) -> None:
        """Take some text, and show it if that is possible."""
        with suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        """Show it now, if that is possible."""
        with suppress(OSError):
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether a person was watching when this began."""
        return self.stream.isatty()


class TrainDisplay(Protocol):
    """Somewhere to show events."""

    def show(self, event: Event) -> None:
        """Draw one event."""
        ...


def choose_stream(quiet: bool) -> TextStream:
    """Where progress is shown; nowhere if it shall be quiet."""
    return StringIO() if quiet else sys.stderr


@dataclass(frozen=True)
class TrainOutcome:
    """What there is when a training has ended."""

    run: Path
    finished: FinishEvent | None
    """None where another process has evaluated it, or this one had nothing to do."""


def follow_training(events: Iterable[Event], stream: TextStream | None = None) -> TrainOutcome:
    """Draw the events of a training until they end.

    Args:
        stream: where to draw; None is standard error.

    Raises:
        InterruptedRun: Ctrl-C where the training room does not catch it; the message says what there is.
    """
    run, finished = None, None
    try:
        with open_display(stream or sys.stderr) as view:
            for event in events:
                view.show(event)
                if isinstance(event, RunFolderEvent):
                    run = event.run
                elif isinstance(event, FinishEvent):
                    finished = event
    except KeyboardInterrupt as interrupt:
        if run is not None and any((run / name).is_file() for name in RESUMABLE_FILES):
            message = f"Interrupted. What was saved is in {run}. Continue with: vitrail train --resume {run}"
        else:
            message = "Interrupted; nothing was saved yet."
        raise InterruptedRun(message) from interrupt
    if run is None:
        raise ValueError("A training that opens no run folder is a dry run, which is not followed.")
    return TrainOutcome(run, finished)


@contextmanager
def open_display(stream: TextStream) -> Iterator[TrainDisplay]:
    """A bar if the stream is a terminal, plain lines otherwise; of several processes only the first one shows."""
    if not is_rank0():
        yield SilentDisplay()
        return
    lasting = FaultTolerantStream(stream)
    if not stream.isatty():
        yield LineDisplay(lasting)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("[bold]{task.fields[phase]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", style="cyan"),
        TextColumn("{task.fields[left]}", style="green"),
    )
    with Progress(*columns, console=Console(file=cast("IO[str]", lasting)), transient=True) as bar:
        yield BarDisplay(bar)


class SilentDisplay:
    """For processes that train beside another one, which shows what they do too."""

    def show(self, event: Event) -> None:
        """Nothing."""


class LineDisplay:
    """Plain lines, for files, pipes and notebooks."""

    def __init__(self, stream: TextStream):
        self.stream = stream
        self.last_time = time.monotonic()

    def show(self, event: Event) -> None:
        """Write what is worth a line; of the steps, one every five seconds and the last."""
        if isinstance(event, TaskProgress):
            if time.monotonic() - self.last_time < SECONDS_BETWEEN_LINES:
                return
            self.last_time = time.monotonic()
        if isinstance(event, StepProgress):
            if time.monotonic() - self.last_time < SECONDS_BETWEEN_LINES and event.step < event.steps:
                return
            self.last_time = time.monotonic()
        if text := format_event(event):
            self.stream.write(f"{text}\n")
            self.stream.flush()


class BarDisplay:
    """A bar that moves, with the notes above it."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self.task = bar.add_task("train", total=None, visible=False, phase="train", facts="", left="")
        self.metric_text = ""

    def show(self, event: Event) -> None:
        """Move the bar by a step, or print a line above it."""
        if isinstance(event, ValidationEvent):
            self.metric_text = f"  val {_format_metric(event).removeprefix('accuracy ')}"
        elif isinstance(event, StepProgress):
            facts = f"loss {event.loss:.3f}  {event.images_per_second:,.0f} images/s{self.metric_text}"
            left = f"{format_duration(event.seconds_left)} left"
            self.bar.update(
                self.task,
                completed=event.step,
                total=event.steps,
                visible=event.step < event.steps,
                phase=event.phase or "train",
                facts=facts,
                left=left,
            )
        elif isinstance(event, TaskProgress):
            self.bar.update(
                self.task,
                completed=event.done,
                total=event.total,
                visible=event.done < event.total,
                facts=event.task_name,
                left=f"{format_duration(event.seconds_left)} left",
            )
        elif text := format_event(event):
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


def format_event(event: Event) -> str:
    """An event as a line or two of plain text; nothing for those that the command tells itself."""
    if isinstance(event, Note):
        return escape_unprintable(event.text)
    if isinstance(event, PlanEvent):
        return "\n".join(format_plan(event))
    if isinstance(event, StepProgress):
        return (
            f"{event.phase} step {event.step:,}/{event.steps:,}  loss {event.loss:.3f}  "
            f"{event.images_per_second:,.0f} images/s  {format_duration(event.seconds_left)} left"
        ).lstrip()
    if isinstance(event, TaskProgress):
        return f"{event.task_name} {event.done:,}/{event.total:,}  {format_duration(event.seconds_left)} left"
    if isinstance(event, ValidationEvent):
        return f"step {event.step:,}  validation {_format_metric(event)}  loss {event.loss:.3f}"
    return ""


def _format_metric(event: ValidationEvent) -> str:
    """The figure with its name, which a bar has no room for where it is the usual one."""
    if event.metric is None:
        return f"{event.metric_name} unknown"
    return (
        f"{event.metric_name} {event.metric:.1%}"
        if event.metric_name == "accuracy"
        else f"{event.metric_name} {event.metric:.3f}"
    )


# A plan in a few aligned lines: what was chosen, and why, for whoever watches a training begin.

MAX_LINE_WIDTH = 118
"""Of lines that go into a file or a wide terminal; a narrow one has narrower lines."""
MIN_REASON_WIDTH = 30
"""Of the column of reasons; where there is no room for it, they stand below."""


def format_plan(plan_event: PlanEvent) -> list[str]:
    """A choice is its name, its value and its reason in columns; a long reason goes on below itself.

    In a narrow terminal all of a reason stands below its choice.
    """
    plan, model, recipe = plan_event.plan, plan_event.plan.model, plan_event.plan.recipe
    height, width = model.image_size
    pictures = (
        f"{height} x {width} x {model.channels}, {model.grid.patches} patches of {model.patch[0]} x {model.patch[1]}"
    )
    machine = f"{recipe.optimizer}, {plan.compute.device}, {plan.compute.precision}"
    rows = [
        ("model", f"{plan.model_name}: {model.depth} blocks, width {model.width}".removeprefix(": "), "model_name"),
        ("pictures", pictures, "model.image_size"),
        ("pre-training", _describe_pretraining(plan), "pretrain.steps"),
        ("teacher", _describe_teacher(plan), "distill.steps" if plan.distill.has_first_stage else "distill.teacher"),
        ("steps", f"{recipe.steps:,} of {recipe.batch_size} pictures", "recipe.steps"),
        ("early steps", _describe_early_steps(plan), "recipe.patch_keep_rate"),
        ("variety", _describe_augmentation(plan), "recipe.mixup"),
        ("answers", _describe_tta(plan), "recipe.tta_shift" if recipe.tta_shift else "recipe.tta_flip"),
        ("machine", machine, "compute.precision"),
    ]
    told = [(name, value, plan_event.reasons.get(field, "")) for name, value, field in rows if value]
    if plan_event.cost is not None:
        cost = plan_event.cost
        told.append(
            ("takes", f"{format_duration(cost.seconds)}, {format_bytes(cost.memory)}", "as the first steps here did")
        )
    left, middle = (max(len(row[column]) for row in told) for column in (0, 1))
    width = min(MAX_LINE_WIDTH, shutil.get_terminal_size((MAX_LINE_WIDTH, 0)).columns - 1)
    beside = width - left - middle - 4 >= MIN_REASON_WIDTH
    column = left + 2 if not beside else left + middle + 4
    found = []
    for name, value, why in told:
        wrapped = textwrap.wrap(escape_unprintable(why), max(MIN_REASON_WIDTH, width - column))
        first = wrapped.pop(0) if beside and wrapped else ""
        found.append(f"{name:<{left}}  {value:<{middle}}  {first}".rstrip())
        found += [f"{'':<{column}}{more}" for more in wrapped]
    return found


def format_expected_cost(plan_event: PlanEvent) -> list[str]:
    """What the run will take, in a sentence; nothing where it was not measured."""
    cost = plan_event.cost
    if cost is None:
        return []
    parts = {"preparation": cost.preparation, "training": cost.training, "evaluation and report": cost.evaluation}
    listed = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items())
    where = "of memory" if plan_event.plan.compute.device == "cpu" else "on the device"
    return [
        f"Expected on this machine: {format_duration(cost.seconds)} ({listed}), {format_bytes(cost.memory)} {where}."
    ]


def _describe_pretraining(plan: Plan) -> str:
    """What is learnt before any label."""
    settings = plan.pretrain
    if not settings.steps:
        return ""
    further = f", also of {Path(settings.extra_images).name}" if settings.extra_images else ""
    batch = settings.batch_size or plan.recipe.batch_size
    return f"{settings.steps:,} steps of {batch} pictures{further}, {settings.mask_ratio:.0%} hidden"


def _describe_teacher(plan: Plan) -> str:
    """Who teaches, and how."""
    settings = plan.distill
    if not settings.is_enabled:
        return ""
    name = "a CNN" if settings.teacher == CNN_TEACHER else Path(settings.teacher).name
    if settings.kind == "features":
        return f"{settings.steps:,} steps of the features of {name}"
    own = f" of {settings.steps:,} steps" if settings.teacher == CNN_TEACHER else ""
    return f"{name}{own}, {settings.alpha:.0%} of the loss"


def _describe_early_steps(plan: Plan) -> str:
    """What the early steps leave out."""
    recipe = plan.recipe
    dropped = recipe.patch_keep_rate < 1 and recipe.patch_keep_until > 0
    smaller = recipe.progressive_size < 1 and recipe.progressive_until > 0
    parts = [f"{recipe.patch_keep_rate:.0%} of the patches until {recipe.patch_keep_until:.0%}"] * dropped
    parts += [f"{recipe.progressive_size:.0%} of the size until {recipe.progressive_until:.0%}"] * smaller
    return ", ".join(parts)


def _describe_augmentation(plan: Plan) -> str:
    """What makes one image many."""
    recipe = plan.recipe
    flips = {"mirror": recipe.flip, "upside down": recipe.flip_vertical, "quarter turns": recipe.transpose}
    words = [name for name, used in flips.items() if used]
    words += [f"shift {recipe.crop_padding}"] * bool(recipe.crop_padding)
    words += [f"turn {recipe.rotate:g}°"] * bool(recipe.rotate)
    words += [f"stretch {recipe.scale:.0%}"] * bool(recipe.scale)
    words += [f"move {recipe.translate:.0%}"] * bool(recipe.translate)
    words += [f"crops from {recipe.crop_scale:g}"] * bool(recipe.crop_scale)
    words += [recipe.auto_augment] * (recipe.auto_augment != "none")
    numbers = {
        "erase": recipe.random_erasing,
        "mixup": recipe.mixup,
        "cutmix": recipe.cutmix,
        "depth": plan.model.drop_path,
    }
    return ", ".join([*words, *(f"{name} {value:g}" for name, value in numbers.items() if value)])


def _describe_tta(plan: Plan) -> str:
    """What an answer is the mean of."""
    views = plan.recipe.views
    words = ["mirrored"] * views.flip + [f"moved by {views.shift}"] * bool(views.shift)
    return f"mean of {views.num_views} views: {', '.join(words)}" if words else ""
