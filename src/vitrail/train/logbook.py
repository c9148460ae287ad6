"""`log.txt` of a run: what was said while it trained, with the time, and why it ended."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from importlib.metadata import version

from ..errors import VitrailError
from .events import Evaluated, Event, Finished, Note
from .run import RunFolder


def logged(run: RunFolder, events: Generator[Event]) -> Iterator[Event]:
    """Pass events on, and write down on the way what somebody may want to read later; steps are in metrics.jsonl."""
    run.log(" ".join([f"vitrail {version('vitrail')}:", "vitrail", *sys.argv[1:]]))
    with closing(events):
        try:
            for event in events:
                if text := _words(event):
                    run.log(text)
                yield event
        except VitrailError as error:
            run.log(str(error))
            raise


def _words(event: Event) -> str:
    if isinstance(event, Note):
        return event.text
    if isinstance(event, Evaluated):
        figure = "unknown" if event.figure is None else f"{event.figure:.4f}"
        return f"Step {event.step:,}: validation {event.name} {figure}, loss {event.loss:.4f}."
    return f"{event.metrics.headline()}." if isinstance(event, Finished) else ""
