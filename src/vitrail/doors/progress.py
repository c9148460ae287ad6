"""How a training is shown while it runs: a bar on a terminal, a plain line every five seconds anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..errors import InterruptedRun, printable
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
from . import planned
from .amounts import duration
from .counting import SECONDS_BETWEEN_LINES

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

BEGUN = ("plan.toml", "folds.json")
"""Either of them in a folder says that `--resume` can go on with it."""


@runtime_checkable
class Stream(Protocol):
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


class Lasting:
    """A stream that takes everything: who watched may have gone, or its disk be full, and a training goes on without.

    The bar draws from a thread of its own, so that errors must end here and not where events are shown.
    """

    def __init__(self, stream: Stream):
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


class Display(Protocol):
    """Somewhere to show events."""

    def show(self, event: Event) -> None:
        """Draw one event."""
        ...


def stream(quiet: bool) -> Stream:
    """Where progress is shown; nowhere if it shall be quiet."""
    return StringIO() if quiet else sys.stderr


@dataclass(frozen=True)
class Followed:
    """What there is when a training has ended."""

    run: Path
    finished: FinishEvent | None
    """None where another process has evaluated it, or this one had nothing to do."""


def follow(events: Iterable[Event], stream: Stream | None = None) -> Followed:
    """Draw the events of a training until they end.

    Args:
        stream: where to draw; None is standard error.

    Raises:
        InterruptedRun: Ctrl-C where the training room does not catch it; the message says what there is.
    """
    run, finished = None, None
    try:
        with display(stream or sys.stderr) as view:
            for event in events:
                view.show(event)
                if isinstance(event, RunFolderEvent):
                    run = event.run
                elif isinstance(event, FinishEvent):
                    finished = event
    except KeyboardInterrupt as interrupt:
        if run is not None and any((run / name).is_file() for name in BEGUN):
            message = f"Interrupted. What was saved is in {run}. Continue with: vitrail train --resume {run}"
        else:
            message = "Interrupted; nothing was saved yet."
        raise InterruptedRun(message) from interrupt
    if run is None:
        raise ValueError("A training that opens no run folder is a dry run, which is not followed.")
    return Followed(run, finished)


@contextmanager
def display(stream: Stream) -> Iterator[Display]:
    """A bar if the stream is a terminal, plain lines otherwise; of several processes only the first one shows."""
    if not is_rank0():
        yield Silent()
        return
    lasting = Lasting(stream)
    if not stream.isatty():
        yield Lines(lasting)
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
        yield Terminal(bar)


class Silent:
    """For processes that train beside another one, which shows what they do too."""

    def show(self, event: Event) -> None:
        """Nothing."""


class Lines:
    """Plain lines, for files, pipes and notebooks."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self.last = time.monotonic()

    def show(self, event: Event) -> None:
        """Write what is worth a line; of the steps, one every five seconds and the last."""
        if isinstance(event, TaskProgress):
            if time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
                return
            self.last = time.monotonic()
        if isinstance(event, StepProgress):
            if time.monotonic() - self.last < SECONDS_BETWEEN_LINES and event.step < event.steps:
                return
            self.last = time.monotonic()
        if text := words(event):
            self.stream.write(f"{text}\n")
            self.stream.flush()


class Terminal:
    """A bar that moves, with the notes above it."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self.task = bar.add_task("train", total=None, visible=False, phase="train", facts="", left="")
        self.figure = ""

    def show(self, event: Event) -> None:
        """Move the bar by a step, or print a line above it."""
        if isinstance(event, ValidationEvent):
            self.figure = f"  val {_figure(event).removeprefix('accuracy ')}"
        elif isinstance(event, StepProgress):
            facts = f"loss {event.loss:.3f}  {event.images_per_second:,.0f} images/s{self.figure}"
            left = f"{duration(event.left)} left"
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
                self.task, completed=event.done, total=event.total, visible=event.done < event.total, facts=event.what,
                left=f"{duration(event.left)} left",
            )  # fmt: skip
        elif text := words(event):
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


def words(event: Event) -> str:
    """An event as a line or two of plain text; nothing for those that the command tells itself."""
    if isinstance(event, Note):
        return printable(event.text)
    if isinstance(event, PlanEvent):
        return "\n".join(planned.lines(event))
    if isinstance(event, StepProgress):
        return (
            f"{event.phase} step {event.step:,}/{event.steps:,}  loss {event.loss:.3f}  "
            f"{event.images_per_second:,.0f} images/s  {duration(event.left)} left"
        ).lstrip()
    if isinstance(event, TaskProgress):
        return f"{event.what} {event.done:,}/{event.total:,}  {duration(event.left)} left"
    if isinstance(event, ValidationEvent):
        return f"step {event.step:,}  validation {_figure(event)}  loss {event.loss:.3f}"
    return ""


def _figure(event: ValidationEvent) -> str:
    """The figure with its name, which a bar has no room for where it is the usual one."""
    if event.figure is None:
        return f"{event.name} unknown"
    return f"{event.name} {event.figure:.1%}" if event.name == "accuracy" else f"{event.name} {event.figure:.3f}"
