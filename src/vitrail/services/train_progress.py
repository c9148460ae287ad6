"""Progress display of a training: a bar on a terminal, else a line every five seconds; and its plan as text."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..errors import InterruptedRun, escape_unprintable
from ..formatting import format_bytes, format_count, format_duration
from ..train.distributed.collectives import is_rank0
from ..train.events import (
    Event,
    FinishEvent,
    Note,
    PlanEvent,
    RunFolderEvent,
    StageEvent,
    StepProgress,
    StopEvent,
    TaskProgress,
    ValidationEvent,
)
from ..train.plan import CNN_TEACHER, Plan, Recipe
from ..train.planning.throughput import THREADS_MEASURED
from ..train.signals import FOLDS_FILE, TUNE_FILE, resume_instructions
from .progress import SECONDS_BETWEEN_LINES, format_stage, start_timer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


RESUMABLE_FILES = ("plan.toml", FOLDS_FILE, TUNE_FILE)
"""A folder with one of them can be resumed."""


@runtime_checkable
class TextStream(Protocol):
    """The interface of standard error or a file for a display."""

    def write(self, text: str, /) -> Any:
        """Write text."""
        ...

    def flush(self) -> Any:
        """Flush the stream."""
        ...


class FaultTolerantStream:
    """A stream that ignores write errors, so that a closed pipe or a full disk does not stop a training.

    The bar draws from its own thread, so errors must be caught here and not where events are shown.
    """

    def __init__(self, stream: TextStream):
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None)
        """Encoding, by which rich chooses the bar's characters."""

    def write(self, text: str, /) -> None:
        """Write text, if possible."""
        with suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        """Flush the stream, if possible."""
        with suppress(OSError):
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal; one that a logger put in the place of standard error may not say."""
        return bool(getattr(self.stream, "isatty", bool)())


def choose_stream(quiet: bool) -> TextStream:
    """Standard error, or with `quiet` a stream that is discarded."""
    return StringIO() if quiet else sys.stderr


@dataclass(frozen=True)
class TrainOutcome:
    """The result of a training."""

    run: Path
    finished: FinishEvent | None
    """None if another process has evaluated the model, or there was nothing to do."""


EventCallback = Callable[[Event], object]
"""Called with every event of a training; what it returns is not read."""


def follow_training(
    events: Generator[Event], stream: TextStream | None = None, callbacks: Sequence[EventCallback] = ()
) -> TrainOutcome:
    """Show the events of a training until it ends. An error of a callback closes it, which saves its last step.

    Args:
        stream: the output; None is standard error.

    Raises:
        InterruptedRun: Ctrl-C that the training did not handle; the message says what was saved. Or a callback stopped
            it before it had a run folder.
    """
    run, finished, is_stopped = None, None, False
    try:
        with closing(events), open_display(stream or sys.stderr) as view:
            for event in events:
                view.show(event)
                for callback in callbacks:
                    callback(event)
                is_stopped = isinstance(event, StopEvent)
                if isinstance(event, RunFolderEvent):
                    run = event.run
                elif isinstance(event, FinishEvent):
                    finished = event
    except KeyboardInterrupt as interrupt:
        if run is not None and any((run / name).is_file() for name in RESUMABLE_FILES):
            message = f"Interrupted. What was saved is in {run}. {resume_instructions(run)}"
        else:
            message = "Interrupted; nothing was saved yet."
        raise InterruptedRun(message) from interrupt
    if run is None and is_stopped:
        raise InterruptedRun("Stopped before the training began; nothing was saved yet.")
    if run is None:
        raise ValueError("A training that opens no run folder is a dry run, which is not followed.")
    return TrainOutcome(run, finished)


@contextmanager
def open_display(stream: TextStream) -> Iterator[LineDisplay | BarDisplay]:
    """A bar if the stream is a terminal, else plain lines; only rank 0 shows anything."""
    safe_stream = FaultTolerantStream(stream)
    if not is_rank0() or not safe_stream.isatty():
        with closing(LineDisplay(safe_stream if is_rank0() else StringIO())) as lines:
            yield lines
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
    with Progress(*columns, console=Console(file=cast("IO[str]", safe_stream)), transient=True) as bar:
        yield BarDisplay(bar)


class LineDisplay:
    """Plain lines, for files, pipes and notebooks."""

    def __init__(self, stream: TextStream):
        self.stream = stream
        self.last_time = time.monotonic()
        self.stage = ExitStack()
        """The timer of the stage that goes on."""

    def close(self) -> None:
        """End the stage that goes on."""
        self.stage.close()

    def show(self, event: Event) -> None:
        """Write an event as a line; of steps one every five seconds and the last, of stages those that last longer."""
        self.close()
        if isinstance(event, StageEvent):
            text = escape_unprintable(event.text)
            self.stage.enter_context(start_timer(lambda seconds: self._write_line(format_stage(text, seconds))))
            return
        if isinstance(event, StepProgress | TaskProgress):
            is_last = isinstance(event, StepProgress) and event.step >= event.steps
            if time.monotonic() - self.last_time < SECONDS_BETWEEN_LINES and not is_last:
                return
            self.last_time = time.monotonic()
        if text := format_event(event):
            self._write_line(text)

    def _write_line(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()


class BarDisplay:
    """A progress bar, with notes above it."""

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
        elif isinstance(event, StageEvent):
            self.bar.update(self.task, completed=0, total=None, visible=True, phase=event.text, facts="", left="")
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
        if isinstance(event, PlanEvent | FinishEvent):
            self.bar.update(self.task, visible=False)


def format_event(event: Event) -> str:
    """An event as plain text; empty for events that the command reports itself."""
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
    if isinstance(event, StopEvent):
        return f"Stopped after step {event.step:,}, saved. {resume_instructions(event.run)}" if event.run else ""
    if isinstance(event, ValidationEvent):
        return f"step {event.step:,}  validation {_format_metric(event)}  loss {event.loss:.3f}"
    return ""


def _format_metric(event: ValidationEvent) -> str:
    """The validation metric with its name."""
    if event.metric is None:
        return f"{event.metric_name} unknown"
    return f"{event.metric_name} {event.metric:{'.1%' if event.metric_name == 'accuracy' else '.3f'}}"


# -- The plan as aligned lines: choices and reasons.

MAX_LINE_WIDTH = 118
"""Line width in a file or a wide terminal."""
MIN_REASON_WIDTH = 30
"""Least width of the column of reasons; in a narrower terminal they go below the choices."""


def format_plan(plan_event: PlanEvent) -> list[str]:
    """A plan as lines with name, value and reason of each choice in columns; long reasons are wrapped.

    In a narrow terminal reasons go below their choices.
    """
    plan, model, recipe = plan_event.plan, plan_event.plan.model, plan_event.plan.recipe
    height, width = model.input_size
    patches = f"{format_count(model.input_grid.patches, 'patch', 'patches')} of {model.patch[0]} x {model.patch[1]}"
    images = f"{height} x {width} x {model.channels}, {patches}"
    images += f" in {model.tiles[0]} x {model.tiles[1]} tiles" if model.is_tiled else ""
    machine = f"{recipe.optimizer}, {plan.compute.device}, {plan.compute.precision}"
    rows = [
        (
            "model",
            f"{plan.model_name}: {format_count(model.depth, 'block')}, width {model.width}".removeprefix(": "),
            "model_name",
        ),
        ("pictures", images, "model.tiles" if model.is_tiled else "model.image_size"),
        ("values", _describe_values(plan), "image.bit_depth"),
        ("pre-training", _describe_pretraining(plan), "pretrain.steps"),
        ("teacher", _describe_teacher(plan), "distill.steps" if plan.distill.has_first_stage else "distill.teacher"),
        ("steps", f"{recipe.steps:,} of {format_count(recipe.batch_size, 'picture')}", "recipe.steps"),
        ("early steps", _describe_early_steps(plan), "recipe.patch_keep_rate"),
        ("variety", _describe_augmentation(plan), "recipe.mixup"),
        ("answers", *_describe_tta(recipe)),
        ("machine", machine, "compute.precision"),
        ("threads", _describe_threads(plan_event), "compute.threads"),
    ]
    choices = [(name, value, plan_event.reasons.get(field, "")) for name, value, field in rows if value]
    if plan_event.cost is not None:
        cost = plan_event.cost
        choices.append(
            ("takes", f"{format_duration(cost.seconds)}, {format_bytes(cost.memory)}", "as the first steps here did")
        )
    left, middle = (max(len(row[column]) for row in choices) for column in (0, 1))
    width = min(MAX_LINE_WIDTH, shutil.get_terminal_size((MAX_LINE_WIDTH, 0)).columns - 1)
    side_by_side = width - left - middle - 4 >= MIN_REASON_WIDTH
    column = left + 2 if not side_by_side else left + middle + 4
    lines = []
    for name, value, why in choices:
        wrapped = textwrap.wrap(escape_unprintable(why), max(MIN_REASON_WIDTH, width - column))
        first = wrapped.pop(0) if side_by_side and wrapped else ""
        lines.append(f"{name:<{left}}  {value:<{middle}}  {first}".rstrip())
        lines += [f"{'':<{column}}{more}" for more in wrapped]
    return lines


def format_expected_cost(plan_event: PlanEvent) -> list[str]:
    """The expected time and memory of a run as a sentence; empty if not measured."""
    cost = plan_event.cost
    if cost is None:
        return []
    parts = {"preparation": cost.preparation, "training": cost.training, "evaluation and report": cost.evaluation}
    listed = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items())
    where = "of memory" if plan_event.plan.compute.device == "cpu" else "on the device"
    return [
        f"Expected on this machine: {format_duration(cost.seconds)} ({listed}), {format_bytes(cost.memory)} {where}."
    ]


def _describe_threads(plan_event: PlanEvent) -> str:
    """The number of CPU threads where it was measured; empty elsewhere."""
    was_measured = plan_event.reasons.get("compute.threads", "").startswith(THREADS_MEASURED)
    return f"{plan_event.plan.compute.threads:,}" if was_measured else ""


def _describe_values(plan: Plan) -> str:
    """The value range of deep images; empty for 8 bits."""
    return f"{plan.image.low:g} to {plan.image.high:g} in 16 bits" if plan.image.bit_depth == 16 else ""


def _describe_pretraining(plan: Plan) -> str:
    """Self-supervised pretraining; empty if there is none."""
    settings = plan.pretrain
    if not settings.steps:
        return ""
    further = f", also of {Path(settings.extra_images).name}" if settings.extra_images else ""
    batch = settings.batch_size or plan.recipe.batch_size
    how = "from the checkpoint" if plan.finetune.from_checkpoint else f"{settings.mask_ratio:.0%} hidden"
    return f"{format_count(settings.steps, 'step')} of {format_count(batch, 'picture')}{further}, {how}"


def _describe_teacher(plan: Plan) -> str:
    """Distillation; empty if there is none."""
    settings = plan.distill
    if not settings.is_enabled:
        return ""
    name = "a CNN" if settings.teacher == CNN_TEACHER else Path(settings.teacher).name
    if settings.kind == "features":
        return f"{format_count(settings.steps, 'step')} of the features of {name}"
    own = f" of {format_count(settings.steps, 'step')}" if settings.teacher == CNN_TEACHER else ""
    return f"{name}{own}, {settings.alpha:.0%} of the loss"


def _describe_early_steps(plan: Plan) -> str:
    """Dropped patches and smaller images of the early steps; empty if there are none."""
    recipe = plan.recipe
    dropped = recipe.patch_keep_rate < 1 and recipe.patch_keep_until > 0
    smaller = recipe.progressive_size < 1 and recipe.progressive_until > 0
    parts = [f"{recipe.patch_keep_rate:.0%} of the patches until {recipe.patch_keep_until:.0%}"] * dropped
    parts += [f"{recipe.progressive_size:.0%} of the size until {recipe.progressive_until:.0%}"] * smaller
    return ", ".join(parts)


def _describe_augmentation(plan: Plan) -> str:
    """Augmentation and regularisation."""
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


def _describe_tta(recipe: Recipe) -> tuple[str, str]:
    """Test-time augmentation, empty if there is none; and the field whose reason says what it costs."""
    views = recipe.views
    sides = " to every side" if views.vertical else ""
    words = ["mirrored"] * views.flip + [f"moved by {views.shift}{sides}"] * bool(views.shift)
    field = "tta_shift_vertical" if views.vertical else "tta_shift" if views.shift else "tta_flip"
    return f"mean of {views.num_views} views: {', '.join(words)}" if words else "", f"recipe.{field}"
